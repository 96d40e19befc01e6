"""Prompts from any source, for training or held out, and the chat templates that turn them into tokens."""
