"""Two ranks learn, two real engines sample: the run of one process with one engine."""

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from tests.backends.vllm.engine.servers import PYTHON, UNTIED
from tests.patience import PATIENCE
from tests.tiny_run import PIECES, ROWS

SETTINGS = """
model.path = "{folder}/model"
task.source = "{folder}/rows.jsonl"
reward.functions = ["letters:likes_a"]
rollout = {{num_prompts = 8, num_generations = 4, max_completion_length = 8}}
optimizer = {{lr = 3e-3, eps = 1e-3}}
train = {{steps = 3, seed = 1}}
eval.num_prompts = 0
algorithm.router_replay = "R3"
[sampler]
engine = "vllm"
python = "{python}"
engine_args = {{enforce_eager = true, max_model_len = 128}}
"""
REWARD = """
def likes_a(prompts, completions, **columns):
    return [c.count("a") / max(1, len(c)) for c in completions]
"""


def run(folder, name, *arguments):
    words = [sys.executable, "-m", "gspo", "train", "run.toml", f"--log.dir={name}", *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = map(json.loads, (folder / name / "rollouts.jsonl").read_text().splitlines())
    weights = {key: x for file in (folder / name / "model").glob("*.safetensors") for key, x in load_file(file).items()}
    metrics = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [row["completion"] for row in rows], weights, metrics


@pytest.mark.slow
def test_two_ranks_and_two_engines_make_the_run_of_one(tmp_path):
    build_tiny(UNTIED, longest_match_tokenizer(PIECES), 0).save(tmp_path / "model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "letters.py").write_text(REWARD)
    (tmp_path / "run.toml").write_text(SETTINGS.format(folder=tmp_path, python=PYTHON))
    one, whole, _ = run(tmp_path, "one")
    two, shards, metrics = run(tmp_path, "two", "--scale.ranks=2", "--scale.expert_parallel=2", "--sampler.engines=2")
    assert one == two and len(one) == 96
    assert whole.keys() == shards.keys() and max(float((whole[name] - shards[name]).abs().max()) for name in whole) < 1e-6
    assert all(line["engines/serving"] == 2 and line["mismatch/kl"] < 1e-6 for line in metrics)
