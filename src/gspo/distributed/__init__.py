"""Ranks: which process this is, what ranks send each other, and how work is divided among them."""
