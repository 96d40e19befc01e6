"""Benchmarks: replies of a model to known problems, their scores, and how two models compare on them."""
