"""Whole runs by their files."""

COLD_START = """
[model]
path = "model"
device = "cpu"
[task]
source = "rows.jsonl"
completion_column = "answer"
[optimizer]
lr = 1e-2
[train]
steps = 30
batch_size = 16
save_every = 100
[log]
dir = "cold"
"""
TRAIN = """
[model]
path = "cold/model"
device = "cpu"
[task]
source = "rows.jsonl"
[reward]
functions = ["exact"]
[rollout]
num_prompts = 4
num_generations = 4
max_completion_length = 4
[optimizer]
lr = 1e-3
[train]
steps = 3
save_every = 2
[eval]
every = 2
num_prompts = 8
[log]
dir = "run"
"""
