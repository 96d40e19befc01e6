"""Agent conversations: chat messages in, sampled tokens out, and each reward mapped back to the tokens that earned it."""
