"""Implementations of the two ports. Only build/assemble.py imports them."""
