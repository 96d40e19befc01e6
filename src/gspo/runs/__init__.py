"""The run folder: log, checkpoints, progress view, and resuming."""
