"""Rewards of completions: named rewards and functions in subprocesses, reward models, judges and preferences."""
