"""Benchmarks as tasks: `gspo compare`, whose cells train, takes their rows and rewards as they are."""

import json

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.report.read import read_lines
from gspo.study.compare import compare

PROBLEMS = [{"problem": f"{i}+1=", "answer": str(i + 1)} for i in range(24)]
STUDY = """
title = "On a benchmark"
plan = "To see that it runs."
seeds = [1]
threads = 1
last = 1
baseline = "GSPO"
[base]
model = {path = "tiny", device = "cpu"}
task = {source = "benchmark:aime24", config = {data = "aime.jsonl"}, system = ""}
reward = {functions = ["math"]}
rollout = {num_prompts = 2, num_generations = 2, max_completion_length = 4}
train = {steps = 1}
algorithm = {mini_batches = 1}
eval = {every = 1, num_prompts = 2}
[variants.GSPO]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pieces = [*map(chr, range(32, 127)), "\n"]
    shape = tiny_qwen3_moe(hidden=32, layers=2, experts=4, expert_width=32, heads=2, kv_heads=1, context=512)
    build_tiny(shape, longest_match_tokenizer(pieces), 0).save("tiny")
    return tmp_path


@pytest.mark.timeout(300)
def test_a_study_on_a_benchmark(place):
    (place / "aime.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    (place / "study.toml").write_text(STUDY)
    assert compare(place / "study.toml", place / "out") == 0
    (path,) = (place / "out").rglob("rollouts.jsonl")
    rollouts = list(read_lines(path))
    assert len(rollouts) == 4 and all("put your final answer within" in one["prompt"] for one in rollouts)
    assert all(one["reward"] in (0.0, 1.0) and one["error"] is None for one in rollouts)
