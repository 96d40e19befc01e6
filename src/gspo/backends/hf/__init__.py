"""The transformers backend: loads, scores, trains and samples from models."""
