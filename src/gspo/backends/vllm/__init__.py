"""vLLM as the sampler: a server of its own, one that runs, or in this process."""
