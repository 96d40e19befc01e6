"""Intervals, paired differences and their verdicts, and scores of several replies to a problem. It imports numpy only."""
