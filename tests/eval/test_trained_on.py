"""Benchmarks as tasks: `gspo train` takes their rows and rewards as they are."""

import json

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.cli.main import main
from gspo.data.benchmarks.codeforces import codeforces_row
from gspo.report.read import read_lines
from tests.data.benchmarks.test_codeforces import ROW

RUN = """
model.path = "cold/model"
task = {source = "benchmark:codeforces", config = {data = "rows.jsonl"}, system = ""}
reward.functions = ["gspo.rewards.programs:codeforces"]
rollout = {num_prompts = 2, num_generations = 8, max_completion_length = 1}
algorithm.mini_batches = 1
train = {steps = 2, seed = 0}
eval.num_prompts = 0
log.dir = "run"
"""
RIGHT, WRONG = (f"```python\nprint(sum(map(int, input().split())){more})\n```" for more in ("", " + 1"))


def test_training_on_programs_that_are_judged_by_tests(tmp_path, monkeypatch):
    """Of a model that was shown a right program and a wrong one."""
    monkeypatch.chdir(tmp_path)
    problems = [ROW | {"id": f"1/{index}", "index": index} for index in "AB"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    shape = tiny_qwen3_moe(hidden=32, layers=2, experts=4, expert_width=32, heads=2, kv_heads=1, context=1024)
    build_tiny(shape, longest_match_tokenizer([RIGHT, WRONG, *map(chr, range(32, 127)), "\n"]), 0).save("tiny")
    prompt = codeforces_row(ROW, 0)["prompt"]
    shown = [{"prompt": prompt, "completion": completion} for completion in (RIGHT, WRONG)]
    gspo.sft(
        "tiny", shown, train={"steps": 60, "batch_size": 2, "seed": 0}, optimizer={"lr": 1e-2}, log={"dir": "cold"},
        task={"system": ""}, eval={"num_prompts": 0},
    )  # fmt: skip
    (tmp_path / "run.toml").write_text(RUN)
    assert main(["train", "run.toml"]) == 0
    rollouts = list(read_lines(tmp_path / "run" / "rollouts.jsonl"))
    assert len(rollouts) == 32 and {one["reward"] for one in rollouts} == {0.0, 1.0}
    for one in rollouts:
        assert one["error"] is None and "Two numbers." in one["prompt"]
        assert one["reward"] == (one["completion"] == RIGHT)
