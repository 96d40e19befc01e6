"""A small study file."""

BASE = """
title = "Which one?"
plan = "Fixed <b>before</b> anything ran."
seeds = [3, 4]
threads = 1
last = 2
baseline = "GRPO"
[base]
model = {path = "tiny"}
task = {source = "rows.jsonl"}
reward = {functions = ["letters:likes_a"], correct_threshold = 0.5}
rollout = {num_prompts = 4, num_generations = 2, max_completion_length = 6}
optimizer = {lr = 3e-3}
train = {steps = 3}
[variants.GRPO]
algorithm = {name = "grpo"}
[variants."GSPO auto"]
algorithm = {name = "gspo", epsilon = "auto"}
"""


def write(place, text):
    (place / "study.toml").write_text(text)
    return place / "study.toml"
