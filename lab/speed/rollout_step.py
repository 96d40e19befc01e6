"""Seconds of one rollout step: gspo against TRL's GRPOTrainer, in turns on the same machine, on the tasks of step_tasks.py.

- chain: 16 prompts x 8 completions of exactly 57 tokens, the 3.4 M-parameter Qwen3-MoE (chain.py), the paper's clip range;
  worked examples: the same with prompts of 526 tokens.
- SmolLM2, 32 tokens: SmolLM2-135M-Instruct, 8 prompts x 8 completions of exactly 32 tokens, and a reward that differs
  between any two, so that neither program has an update to skip.
- SmolLM2, the demo: the task of `gspo demo`. The model ends its completions, and groups of equal rewards teach nothing.

4 updates, float32, 2 threads. Both do the whole step: sampling, rewards, advantages, updates, and the metrics that they
compute anyway; neither logs, saves or evaluates. TRL computes pi_old by one more forward pass, as it must when a rollout
batch gives several updates; gspo takes the sampler's own likelihoods, and is timed with pi_old recomputed as well. The first
run installs TRL into .bench-trl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import chain
from paired import THREADS, Worker, median_interval, medians, take_turns
from step_tasks import TASKS
from trl_step import HERE, trl_environment

COMPILED = {"torch_compile": True}


def commands(model: Path, task: str, scratch: Path) -> dict[str, list[str]]:
    """What starts each worker. With a C++ compiler TRL is faster compiled."""
    ours = [sys.executable, str(HERE / "ours_step.py"), str(model), task]
    theirs = [str(trl_environment()), str(HERE / "trl_step.py"), str(model), task, str(scratch / "trl")]
    recompute = json.dumps({"algorithm": {"old_logprobs": "recompute"}})
    by_name = {"gspo": ours, "gspo, pi_old recomputed": [*ours, "--changes", recompute], "TRL": theirs}
    if shutil.which("g++"):
        by_name["TRL, torch_compile"] = [*theirs, "--trial", json.dumps(COMPILED)]
    return by_name


def model_of(task: str, scratch: Path) -> Path:
    """The folder of a task's model."""
    if not TASKS[task].pretrained:
        return chain.write_model(scratch / "model")
    from gspo.demo.smollm2 import fetch_smollm2

    return fetch_smollm2()


def measure(repeats: int, warm_up: int, task: str, only: list[str] | None) -> dict[str, list[dict[str, Any]]]:
    """The steps of each worker, in turns. only: names of the workers; None: all."""
    with tempfile.TemporaryDirectory() as scratch:
        starts = commands(model_of(task, Path(scratch)), task, Path(scratch))
        workers: list[Worker] = []
        try:
            for i, (name, command) in enumerate((name, starts[name]) for name in only or starts):
                workers.append(Worker(name, command, Path(scratch) / f"worker{i}.log"))
            return take_turns(workers, repeats, warm_up)
        finally:
            for worker in workers:
                worker.close()


def summarise(steps: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of each program, and how many times faster than each TRL ours are: the median of the paired ratios."""
    summary: dict[str, Any] = {}
    for name, own in steps.items():
        summary[name] = medians(own) | {"fastest": min(step["seconds"] for step in own), "speed_up": {}}
        for opponent, theirs in steps.items():
            if name.startswith("gspo") and opponent.startswith("TRL"):
                ratios = [b["seconds"] / a["seconds"] for a, b in zip(own, theirs, strict=True)]
                low, high, coverage = median_interval(ratios)
                speed_up = {"median": statistics.median(ratios), "low": low, "high": high, "coverage": coverage}
                summary[name]["speed_up"][opponent] = speed_up
    return summary


def show(summary: dict[str, Any]) -> None:
    """Print the summary."""
    parts = ("seconds", "fastest", "sample", "score", "train", "peak_gib", "length", "reward")
    print(f"{'medians, seconds a step':24}" + "".join(f"{part:>9}" for part in parts))
    for name, row in summary.items():
        print(f"{name:24}" + "".join(f"{row[part]:9.3f}" for part in parts))
    for name, row in summary.items():
        for opponent, s in row["speed_up"].items():
            print(f"{name}: {s['median']:.2f} [{s['low']:.2f}, {s['high']:.2f}] times as fast as {opponent}")


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=12, help="recorded steps of each program (at least 5)")
    parser.add_argument("--warm-up", type=int, default=4, help="steps before them")
    small = [name for name, task in TASKS.items() if not task.pretrained]  # all at once on SmolLM2 take too much memory
    parser.add_argument("--tasks", nargs="+", default=small, choices=list(TASKS))
    parser.add_argument("--only", nargs="+", help="names of the programs, as the table has them; all by default")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/rollout_step.json"), help="file for all the numbers")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error(f"--repeats {options.repeats}: at least 5")
    tasks: dict[str, dict[str, Any]] = {}
    for task in options.tasks:
        steps = measure(options.repeats, options.warm_up, task, options.only)
        tasks[task] = {"summary": summarise(steps), "steps": steps}
        print(f"{task}:")
        show(tasks[task]["summary"])
        lengths = {step["length"] for own in steps.values() for step in own}
        if not TASKS[task].ends and lengths != {TASKS[task].completion_tokens}:
            raise RuntimeError(f"completions of {sorted(lengths)} tokens: the programs did not do the same work")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"threads": THREADS, "tasks": tasks}, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
