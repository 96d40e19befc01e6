"""Processes that can be killed with all they started, and messages to them."""
