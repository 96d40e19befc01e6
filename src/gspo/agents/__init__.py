"""Conversations: chat messages in, tokens sampled, and every sampled token found again when the reward is known."""
