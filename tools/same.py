"""Compares seeded runs of this tree with those of another commit, number by number: `make same BASE=commit`.

For every redesign that should change no numbers. Three short runs: the demo (a mixture of experts), the agents' demo
(conversations with a tool), and a dense model with adapters and a KL term. Each side reads its own settings and its own
code; both begin with the same weights. Times are not compared. The agents' run samples row by row: which conversations
share a batch is a matter of time, and the shape of a batch decides how float32 rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).with_suffix("")
SEED = 3
TIMES = ("time/", "tokens_per_second", "memory/")
# Prepared once, by this tree: the model that each run begins with.
MODELS = """
import sys
from pathlib import Path
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.demo import count_bits, tool_task

def build(name, pieces, template, **config):
    tokenizer = longest_match_tokenizer(pieces)
    tokenizer.chat_template = template
    build_tiny(tiny_qwen3_moe(context=256) | config, tokenizer, 3).save(Path(sys.argv[1]) / name)

build("demo", count_bits.PIECES, None)
build("agent", tool_task.PIECES, tool_task.TEMPLATE)
build("dense", count_bits.PIECES, None, model_type="qwen3")
"""
# By run: the model, the settings of its cold start with their changes, and those of its training.
RUNS: dict[str, tuple[str, str | None, dict[str, Any], str, dict[str, Any]]] = {
    "demo": (
        "demo", "src/gspo/demo/cold_start.toml", {"train.steps": 30, "task.config": "{size = 2000, min_n = 10000, "
        "max_n = 99999, worked = 0.35, slip = 0.01, seed = 0, held_out = 512}"}, "src/gspo/demo/train.toml",
        {"train.steps": 6, "rollout.max_completion_length": 48, "eval.every": 3, "eval.num_prompts": 16},
    ),
    "agent": (
        "agent", "src/gspo/demo/agent_cold_start.toml", {"train.steps": 40, "task.config": "{size = 3000, looking = 0.4, "
        "slip = 0.05, seed = 0}"}, "src/gspo/demo/agent_train.toml",
        {"train.steps": 3, "eval.every": 3, "eval.num_prompts": 8, "rollout.num_prompts": 8, "rollout.num_generations": 4,
         "sampler.batch_size": 1},
    ),
    "dense": ("dense", None, {}, "tools/same/dense.toml", {}),
}  # fmt: skip


def main() -> int:
    """Runs both sides. Returns 0 where they agree, 1 where they do not, 2 for bad input."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("base", metavar="COMMIT", help="what this tree is compared with")
    parser.add_argument("--only", choices=RUNS, action="append", help="one of the runs (default: all)")
    parser.add_argument(
        "--renamed", nargs="*", default=[], metavar="OLD=NEW", help="metrics and fields that this tree calls otherwise"
    )
    arguments = parser.parse_args()
    renamed = dict(pair.split("=", 1) for pair in arguments.renamed)
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "-q", f"{arguments.base}^{{commit}}"], cwd=ROOT, capture_output=True
    )
    if found.returncode:
        print(f"{arguments.base}: no such commit", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gspo-same-") as scratch:
        models, other = Path(scratch) / "models", Path(scratch) / "base"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", other, arguments.base], cwd=ROOT, check=True)
        try:
            python(ROOT, ["-c", MODELS, str(models)])
            wrong = 0
            for name in arguments.only or RUNS:
                mine, theirs = (trained(tree, name, models, Path(scratch) / f"{name}-{side}") for side, tree in
                                (("new", ROOT), ("base", other)))  # fmt: skip
                differences = list(compare(theirs, mine, renamed))
                wrong += bool(differences)
                print(f"{name}: {'equal' if not differences else f'{len(differences)} differences'}", flush=True)
                for line in differences[:10]:
                    print(f"  {line}")
            return int(wrong > 0)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)


def python(tree: Path, arguments: list[str]) -> None:
    """Runs Python with the gspo of `tree`. Raises RuntimeError with its output where it fails."""
    env = os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], cwd=tree, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{tree}: {arguments[:4]} failed:\n{done.stderr[-3000:]}")


def trained(tree: Path, name: str, models: Path, folder: Path) -> Path:
    """A run with the code and the settings of `tree`. Returns its folder."""
    model, cold, cold_changes, settings, changes = RUNS[name]
    start = models / model
    if cold is not None:
        command(tree, "sft", cold, cold_changes, start, folder.with_name(f"{folder.name}-cold"))
        start = folder.with_name(f"{folder.name}-cold") / "model"
    command(tree, "train", settings, changes, start, folder)
    return folder


def command(tree: Path, name: str, settings: str, changes: dict[str, Any], model: Path, folder: Path) -> None:
    """`gspo train` or `gspo sft` in `tree`. Settings that it does not have yet are this tree's."""
    path = tree / settings if (tree / settings).exists() else ROOT / settings
    seed = {} if name == "sft" else {"train.seed": SEED}  # supervised runs draw nothing
    fields = changes | seed | {"model.path": model, "model.device": "cpu", "log.dir": folder}
    words = [f"--{key}={value}" for key, value in fields.items()]
    python(tree, ["-m", "gspo", name, str(path), *words])


def compare(base: Path, new: Path, renamed: dict[str, str]) -> Iterator[str]:
    """What differs between two run folders, in words."""
    for name in ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl"):
        before, after = read(base / name), read(new / name)
        if len(before) != len(after) or not before:
            yield f"{name}: {len(before)} lines became {len(after)}"
        for number, (old, line) in enumerate(zip(before, after), 1):
            old = {renamed.get(key, key): value for key, value in old.items()}
            for key in sorted({*old, *line}):
                if not key.startswith(TIMES) and repr(old.get(key, "missing")) != repr(line.get(key, "missing")):
                    was, now = (repr(side.get(key, "missing"))[:60] for side in (old, line))
                    yield f"{name}, line {number}, {key}: {was} became {now}"


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
