"""The recipes of SmolLM2, run as their users run them, but each for one step with few and short completions."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
STEP = {
    "rollout.num_prompts": 4, "rollout.num_generations": 2, "rollout.max_completion_length": 8, "train.steps": 1,
    "eval.num_prompts": 2,
}  # fmt: skip
COLD_START = {"train.steps": 1, "train.batch_size": 2}


def command(*words, module="gspo"):
    """Runs a command of gspo, or another module. Returns what it printed."""
    path = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def fields(**values):
    return [word for name, value in values.items() for word in (f"--{name}", value)]


@pytest.fixture(scope="module")
def trained(pretrained, tmp_path_factory):
    """Runs a recipe from the model that it names, or from `model`. Returns the folder of the trained model."""

    made = []

    def run(name, kind="train", short=STEP, model=pretrained, **changes):
        made.append(folder := tmp_path_factory.mktemp(name))
        command(kind, f"recipe:smollm2-{name}", *fields(**short | {"model.path": model, "log.dir": folder} | changes))
        shutil.rmtree(folder / "checkpoints")  # 1.6 GB
        return folder / "model"

    yield run
    for folder in made:
        shutil.rmtree(folder)


def test_arithmetic(trained):
    trained("arithmetic", model=trained("arithmetic-cold-start", "sft", COLD_START))


def test_lora(trained):
    assert (trained("lora") / "adapter_config.json").is_file()


def test_distil(trained):
    trained("distil", **{"teacher.path": trained("lora")})


def test_grpo_gspo(pretrained, tmp_path):
    printed = command(
        "compare", "recipe:smollm2-grpo-gspo", "--dir", tmp_path, "--only", "*/seed0",
        *fields(**STEP, **{"model.path": pretrained}),
    )  # fmt: skip
    assert "GRPO" in printed and "GSPO" in printed
    shutil.rmtree(tmp_path)


def test_upcycled(pretrained, trained, tmp_path):
    mixture, completions = tmp_path / "mixture", tmp_path / "dense.jsonl"
    printed = command(pretrained, mixture, "--experts", 2, "--noise", 0, module="gspo.recipes.upcycle")
    changed = float(printed.split()[-1])
    assert changed < 1e-3
    source = {"model.path": pretrained, "task.eval_source": "gspo.demo.word_sums:training", "eval.num_prompts": 2}
    command("eval", "recipe:smollm2-upcycled", "--out", completions, *fields(**source))
    repaired = trained("upcycled-sft", "sft", COLD_START, mixture, **{"task.source": completions})
    trained("upcycled", model=repaired)
    shutil.rmtree(mixture)


def test_tools(trained):
    if importlib.util.find_spec("bfcl_eval") is None and os.environ.get("GSPO_REAL") != "1":
        pytest.skip("the problems are not there: pip install --no-deps bfcl-eval")
    trained("tools")


def test_programs(trained):
    trained("programs")


def test_agent(trained):
    trained("agent")


def test_suite(pretrained):
    short = fields(**{"model.path": pretrained, "eval.num_prompts": 2})
    assert "accuracy" in command("eval", "recipe:smollm2-suite", *short)
