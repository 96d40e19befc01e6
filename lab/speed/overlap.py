"""Does sampling ahead of the trainer save time? Whole runs on two cores, vLLM beside the trainer.

python lab/speed/overlap.py --python .venv-vllm/bin/python [--seeds 3] [--steps 40] [--dir runs/bench/overlap]

Four ways, the same prompts and the same cold start: both cores for each phase in turn; one core for vLLM and one for the
trainer, in turn; the same with sampling 1 and 2 weight versions ahead. Finished runs are kept. Reported: seconds a step
(median over the steps after the third, ratio to the first way paired by seed), reward of the last 10 steps, age of the
tokens, mean length of the completions that were trained on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from gspo import api
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.files import from_dict, load, to_toml
from gspo.demo import count_bits, stages

WAYS = {"both cores, in turn": (2, 0), "a core each, in turn": (1, 0), "1 ahead": (1, 1), "2 ahead": (1, 2)}
WARM_UP, LAST = 3, 10


def prepare(folder: Path) -> Path:
    """The mixture of the studies with heads that vLLM serves on a CPU, after its cold start."""
    if not (folder / "model").exists():
        outline = tiny_qwen3_moe(hidden=96, layers=4, experts=16, expert_width=64, top_k=2, context=256, heads=3, kv_heads=1)
        tiny = build_tiny(outline, longest_match_tokenizer(count_bits.PIECES), seed=0)
        recipe = load(stages.HERE / "cold_start.toml")
        if not api.sft(tiny.model, tokenizer=tiny.tokenizer, config=recipe, log={"dir": str(folder)}).finished:
            sys.exit(f"stopped before the end of the cold start; remove {folder}, then begin anew")
    return folder / "model"


def run(model: Path, folder: Path, python: str, seed: int, steps: int, way: str) -> list[dict[str, Any]]:
    """The metrics of one run's steps."""
    threads, ahead = WAYS[way]
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() or len(metrics.read_text().splitlines()) < steps:
        numbers = {"min_n": 10000, "max_n": 99999}
        config = from_dict(
            {
                "model": {"path": str(model)},
                "task": {"source": "reasoning_gym:count_bits", "config": numbers, "size": 4000, "seed": seed},
                "rollout": {"num_prompts": 12, "num_generations": 8, "max_completion_length": 130, "max_staleness": ahead},
                "sampler": {
                    "engine": "vllm", "python": python, "engine_args": {"enforce_eager": True, "max_model_len": 256},
                },
                "optimizer": {"lr": 5e-5},
                "algorithm": {"epsilon": 3e-3, "epsilon_high": 4e-3},
                "eval": {"every": 0},
                "train": {"steps": steps, "seed": seed, "save_every": 1000},
                "log": {"dir": str(folder), "token_rollouts": 0},
            }
        )  # fmt: skip
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_suffix(".toml")
        file.write_text(to_toml(config))
        environment = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
        with open(folder.with_suffix(".txt"), "w") as output:
            subprocess.run(
                [sys.executable, "-m", "gspo", "train", str(file)], env=os.environ | environment, check=True,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if "loss" in line]


def mean_of(values: list[float]) -> str:
    """Mean with a 95 % interval by Student's t."""
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}.get(len(values), math.nan)
    mean = statistics.mean(values)
    half = t * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}]"


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter whose environment has vLLM")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--dir", type=Path, default=Path("runs/bench/overlap"))
    options = parser.parse_args()
    model = prepare(options.dir.with_name(f"{options.dir.name}-model"))
    by_way: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in WAYS}
    for seed in range(options.seeds):
        for way in WAYS:
            folder = options.dir / way.replace(",", "").replace(" ", "-") / f"seed{seed}"
            by_way[way].append(run(model, folder, options.python, seed, options.steps, way))
            print(f"{way}, seed {seed}: {sum(line['time/step'] for line in by_way[way][-1]):.0f} s", flush=True)
    first = next(iter(WAYS))
    seconds = {
        way: [statistics.median(x["time/step"] for x in each[WARM_UP:]) for each in runs] for way, runs in by_way.items()
    }
    print("| way | s a step | ratio | reward | age | length |\n|---|---|---|---|---|---|")
    for way, runs in by_way.items():
        ratio = [a / b for a, b in zip(seconds[way], seconds[first])]
        rows = [
            mean_of([statistics.mean(x[name] for x in each[-count:]) for each in runs])
            for name, count in (("reward", LAST), ("staleness", 0), ("completions/mean_length", 0))
        ]
        print(f"| {way} | {mean_of(seconds[way])} | {mean_of(ratio)} | " + " | ".join(rows) + " |")


if __name__ == "__main__":
    main()
