"""How long a test waits for processes that must end."""

PATIENCE = 3600.0
"""Seconds, for the busiest machine: what hangs is found much earlier, by its doing nothing (tools/suite/workers.py)."""
