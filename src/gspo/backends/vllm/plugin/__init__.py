"""Files loaded into vLLM's environment. They import nothing of gspo."""
