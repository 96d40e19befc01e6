"""Known benchmarks as prompt sources: `task.source = "benchmark:NAME"`. Each module handles the schemas of one benchmark."""
