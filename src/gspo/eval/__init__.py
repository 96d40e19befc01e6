"""`gspo eval --benchmark`: replies to a benchmark, their marks, scores and comparisons."""
