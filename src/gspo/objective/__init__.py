"""Objectives on flattened sampled tokens: the paper's equations. Imports torch only."""
