"""Two ranks learn, two real engines sample: the run of one process with one engine."""

import json
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from tests.backends.vllm.engine.servers import PYTHON, UNTIED, lines
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


def fill(folder):
    """A model, rows, a reward and the settings of a run."""
    build_tiny(UNTIED, longest_match_tokenizer(PIECES), 0).save(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "letters.py").write_text(REWARD)
    (folder / "run.toml").write_text(SETTINGS.format(folder=folder, python=PYTHON))
    return folder


def run(folder, name, *arguments):
    words = [sys.executable, "-m", "gspo", "train", "run.toml", f"--log.dir={name}", *arguments]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return found(folder / name)


def found(folder):
    """The completions of a run, its weights and its metrics."""
    weights = {key: x for file in (folder / "model").glob("*.safetensors") for key, x in load_file(file).items()}
    return [row["completion"] for row in lines(folder, "rollouts")], weights, lines(folder)


@pytest.mark.slow
def test_two_ranks_and_two_engines_make_the_run_of_one(tmp_path):
    fill(tmp_path)
    one, whole, _ = run(tmp_path, "one")
    two, shards, metrics = run(tmp_path, "two", "--scale.ranks=2", "--scale.expert_parallel=2", "--sampler.engines=2")
    assert one == two and len(one) == 96
    assert whole.keys() == shards.keys() and max(float((whole[name] - shards[name]).abs().max()) for name in whole) < 1e-6
    assert all(line["engines/serving"] == 2 and line["mismatch/kl"] < 1e-6 for line in metrics)
