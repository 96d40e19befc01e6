"""A run of episodes that go on while weights change, sampled by a real engine, is killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import gspo
from gspo.backends.hf.tiny import build_tiny
from tests.agents.talking import tokenizer
from tests.backends.vllm.engine.servers import ENGINE, MOE
from tests.patience import PATIENCE


def train(folder, count, resume=False):
    hf = build_tiny(MOE, tokenizer("chatml"))
    sections = {
        "task": {"environment": "tests.agents.test_episodes:Quiz"},
        "rollout": {"num_prompts": 4, "num_generations": 4, "max_completion_length": 10, "max_staleness": 2},
        "algorithm": {"name": "gspo_token", "credit": "turn", "mini_batches": 1, "router_replay": "R3"},
        "sampler": ENGINE,
        "eval": {"every": 0, "num_prompts": 4}, "log": {"dir": str(folder)}, "optimizer": {"lr": 3e-3},
    }  # fmt: skip
    rows = [{"prompt": f"say a, {i}"} for i in range(40)]
    train = {"steps": count, "save_every": 2}
    return gspo.train(hf.model, rows, tokenizer=hf.tokenizer, train=train, resume=resume, **sections)


def lines(folder, name):
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_loses_no_prompt(tmp_path):
    folder = tmp_path / "run"
    program = "import sys; from tests.backends.vllm.engine.test_episodes import train; train(sys.argv[1], 1000)"
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)])
    try:
        while len(lines(folder, "metrics")) < 5:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)
    assert train(folder, 10, resume=True).finished
    metrics = lines(folder, "metrics")
    assert [line["step"] for line in metrics] == list(range(1, 11))
    assert all(line["staleness"] <= 2 and line["mismatch/kl"] < 1e-8 and line["rollouts/failed"] == 0 for line in metrics)
    assert sum(line["staleness"] for line in metrics) > 2 and sum(line["rollouts/multi_version"] for line in metrics) > 0
    rollouts = lines(folder, "rollouts")
    assert all(len(row["dialogue"]) == 4 and len(row["advantage"]) == 2 for row in rollouts)
    assert all(row["step"] - 1 - row["version"] <= 2 for row in rollouts)
    ids = [row["prompt_id"] for row in rollouts][::4]
    assert len(ids) == 40 and len(set(ids[:36])) == 36  # 36 train, 4 are held out
