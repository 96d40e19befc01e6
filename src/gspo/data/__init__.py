"""Prompts, chat templates and rewards."""
