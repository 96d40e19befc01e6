"""Implementations of the two ports. Only build.py imports them."""
