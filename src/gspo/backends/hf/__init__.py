"""Models of transformers: read, scored, trained and sampled from."""
