"""Prompts -> groups of scored rollouts -> completions with advantages."""
