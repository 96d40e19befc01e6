"""Ranks: the number of this process, communication between ranks, and load balancing."""
