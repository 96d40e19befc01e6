"""Configuration -> the objects of a run. Here alone concrete backends are named."""
