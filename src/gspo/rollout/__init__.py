"""Prompts -> groups of scored rollouts -> replies with advantages."""
