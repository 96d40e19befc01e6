"""The vLLM sampler: servers that a run starts, or servers that already run."""
