"""What vLLM's environment gets of gspo: files that import nothing of it."""
