"""Implementations of the two ports. Only build imports them, and the demo, which makes its own model."""
