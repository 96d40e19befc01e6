"""Runs model-written programs in a sandbox."""
