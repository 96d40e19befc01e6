"""Runs programs of a model in a sandbox."""
