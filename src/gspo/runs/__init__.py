"""A run's folder: its log, its checkpoints, what is shown of it, and the way back into it."""
