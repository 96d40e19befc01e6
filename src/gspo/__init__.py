"""gspo: train language models with Group Sequence Policy Optimization (arXiv 2507.18071)."""
