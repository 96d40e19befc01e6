"""Known benchmarks as prompt sources: `task.source = "benchmark:NAME"`. Each module knows the schemas of one of them."""
