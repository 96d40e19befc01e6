"""Objectives on flat sampled tokens: the paper's equations. Imports torch only."""
