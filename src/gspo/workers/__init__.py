"""Subprocesses that can be killed together with all descendants, and messages to them."""
