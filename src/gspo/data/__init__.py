"""Prompts from any source, held out or to train on, and the chat templates that turn them into tokens."""
