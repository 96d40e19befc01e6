"""How long a test waits for processes that must end."""

PATIENCE = 400.0
"""Seconds. A busy machine needs them; what hangs is found by pytest's own limit, which is longer."""
