"""`gspo eval --benchmark`: samples replies to a benchmark, scores them, and compares models."""
