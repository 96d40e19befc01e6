"""What the length-normalised ratio costs: GSPO against GRPO, a whole rollout step and the objective alone.

python lab/speed/sequence_ratio.py [--repeats 12] [--out FILE.json]

The step is that of rollout_step.py (16 prompts x 8 completions of exactly 57 tokens, 4 updates), by `gspo train`'s own path;
two processes take turns. The objective alone is the forward and backward pass from log-probabilities to their gradient, also
at the paper's kind of length. Ratios are medians of paired ratios with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import chain
import torch
from paired import THREADS, Worker, median_interval, take_turns

from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions

HERE = Path(__file__).resolve().parent
NAMES = ("gspo", "grpo")
SIZES = ((32, 57), (64, 8192))  # completions of an update, tokens of each


def steps(repeats: int, warm_up: int) -> dict[str, list[dict[str, Any]]]:
    """Whole rollout steps of both, in turns."""
    with tempfile.TemporaryDirectory() as scratch:
        model = chain.write_model(Path(scratch) / "model")
        workers: list[Worker] = []
        try:
            for name in NAMES:
                changes = json.dumps({"algorithm": {"name": name}})
                command = [sys.executable, str(HERE / "ours_step.py"), str(model), "chain", "--changes", changes]
                workers.append(Worker(name, command, Path(scratch) / f"{name}.log"))
            return take_turns(workers, repeats, warm_up)
        finally:
            for worker in workers:
                worker.close()


def alone(completions: int, tokens: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each objective's forward and backward pass, in turns."""
    g = torch.Generator().manual_seed(0)
    y = Completions.of(torch.full((completions,), tokens))
    old = -3 * torch.rand(completions * tokens, generator=g)
    logp = (old + 0.05 * torch.randn(len(old), generator=g)).requires_grad_()
    A = torch.randn(completions, generator=g)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for repeat in range(-5, repeats):
        for name in NAMES if repeat % 2 else NAMES[::-1]:
            row = ALGORITHMS[name]
            begin = time.perf_counter()
            row.loss_function(logp, old, A, y, row.epsilon, row.epsilon_high).loss.sum().backward()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - begin)
            logp.grad = None
    return seconds


def compare(title: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Print and return medians and the paired ratio."""
    ratios = [a / b for a, b in zip(*(seconds[name] for name in NAMES), strict=True)]
    low, high, _ = median_interval(ratios)
    medians = {name: statistics.median(seconds[name]) for name in NAMES}
    ratio = statistics.median(ratios)
    print(f"{title:34} {medians['gspo']:10.5f} {medians['grpo']:10.5f}   {ratio:.3f} [{low:.3f}, {high:.3f}]", flush=True)
    return {"what": title, "medians": medians, "ratio": ratio, "low": low, "high": high}


def main() -> None:
    """Measure, print, write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12, help="recorded steps of each, at least 6")
    parser.add_argument("--out", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if options.repeats < 6:
        parser.error(f"--repeats {options.repeats}: at least 6")
    torch.set_num_threads(THREADS)
    by_name = steps(options.repeats, warm_up=4)
    print(f"{'seconds, medians':34} {'gspo':>10} {'grpo':>10}   gspo / grpo")
    results = [
        compare(f"rollout step: {part}", {name: [step[key] for step in own] for name, own in by_name.items()})
        for part, key in (("whole", "seconds"), ("updates", "train"))
    ]
    for completions, tokens in SIZES:
        results.append(
            compare(f"objective, {completions} x {tokens} tokens", alone(completions, tokens, 10 * options.repeats))
        )
    if options.out:
        options.out.write_text(json.dumps({"threads": THREADS, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
