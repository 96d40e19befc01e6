"""How the cost of an update grows: slopes of log time and log memory against log tokens, group size and experts.

The chain model, float32, forward and backward. tokens: more prompts of 128 with 8 completions of 64, in micro-batches of
`--budget` tokens, each but the last full, so that memory should not grow. group: completions to one prompt of 256. experts:
of which each token visits 2, so that the work should not grow. A slope of 1 is proportional cost. Each slope is the median
of the least-squares slopes of single repeats.

Memory is the peak of a pass above what stands before it, which is weights and their gradients. Those grow with the experts,
as they must; the slope says whether what a pass adds does (hidden states and other activations, and one layer's gradient
before it is added to what stands). It has passes of its own, untimed, since freed memory is given back before each.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from models import mixture
from paired import median_interval
from update import completions, one_pass, peak

from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.types import Completion

Case = tuple[HFModel, list[Completion]]


def cases() -> dict[str, dict[int, Case]]:
    """What is measured, by what grows and its size."""
    model = mixture()
    return {
        "tokens": {n * (128 + 8 * 64): (model, completions(128, 64, 8, n)) for n in (7, 14, 28, 56)},
        "group": {g: (model, completions(256, 64, g, 1)) for g in (4, 8, 16, 32)},
        "experts": {e: (mixture(experts=e), completions(128, 64, 8, 4)) for e in (8, 16, 32, 64)},
    }


def slope(sizes: list[int], costs: list[float]) -> float:
    """Of log cost against log size, least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def line(costs: dict[int, list[float]], repeats: int) -> dict[str, float]:
    """The median of the slopes of single repeats, and its interval."""
    sizes = list(costs)
    slopes = [slope(sizes, [costs[size][i] for size in sizes]) for i in range(repeats)]
    low, high, _ = median_interval(slopes)
    return {"slope": statistics.median(slopes), "low": low, "high": high}


def measure(family: dict[int, Case], budget: int, repeats: int) -> dict[str, Any]:
    """Seconds and GiB by size, medians, and their slopes."""
    seconds: dict[int, list[float]] = {size: [] for size in family}
    memory: dict[int, list[float]] = {size: [] for size in family}
    runs = {size: one_pass(HFPolicy(model, layout="auto"), batch, budget) for size, (model, batch) in family.items()}
    for run in runs.values():
        run()  # warm; and the gradients stand from here on
    sizes = list(runs)
    for i in range(repeats):
        for size in sizes[i % len(sizes) :] + sizes[: i % len(sizes)]:  # so that a drift of the machine is no slope
            begin = time.perf_counter()
            runs[size]()
            seconds[size].append(time.perf_counter() - begin)
    for _ in range(repeats):
        for size, run in runs.items():
            memory[size].append(peak(run, torch.device("cpu")))
    return {
        "seconds": {size: statistics.median(own) for size, own in seconds.items()},
        "GiB": {size: statistics.median(own) for size, own in memory.items()},
        "repeats": repeats,
        "memory": line(memory, repeats),
    } | line(seconds, repeats)


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=4096, help="train.micro_batch_tokens")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scaling.json"), help="file for all the numbers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {}
    for name, family in cases().items():
        results[name] = slopes = measure(family, options.budget, options.repeats)
        for unit, own in (("seconds", slopes), ("GiB", slopes["memory"])):
            print(f"{name}: slope of {unit} {own['slope']:.2f} [{own['low']:.2f}, {own['high']:.2f}]", slopes[unit])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"threads": options.threads, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
