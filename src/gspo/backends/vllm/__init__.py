"""vLLM as the sampler: servers that it starts, or that run already."""
