"""How the cost of an update grows: slopes of log time and log memory against log tokens, group size and experts.

The chain model, float32. tokens: more prompts of 128 with 8 replies of 64, in micro-batches of `--budget` tokens, so that
memory should not grow. group: replies to one prompt of 256. experts: of which each token visits 2; the weights grow, the
work should not. A slope of 1 is proportional cost. Each slope is the least-squares line through medians; its interval is
that of the slopes of the single repeats.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import chain
import torch
from machine import Memory
from paired import median_interval
from transformers import Qwen3MoeForCausalLM
from update import CONTEXT, mixture, one_pass, replies

from gspo.backends.hf_model import HFModel, wrap_model
from gspo.backends.hf_policy import HFPolicy
from gspo.types import Reply

Case = tuple[HFModel, list[Reply]]


def with_experts(count: int) -> HFModel:
    """The chain model with so many experts."""
    tokenizer = chain.make_tokenizer()
    config = chain.make_config(tokenizer)
    config.num_experts, config.max_position_embeddings = count, CONTEXT
    torch.manual_seed(0)
    return wrap_model(Qwen3MoeForCausalLM(config), tokenizer)


def cases() -> dict[str, dict[int, Case]]:
    """What is measured, by what grows and its size."""
    model = mixture()
    return {
        "tokens": {n * (128 + 8 * 64): (model, replies(128, 64, 8, n)) for n in (2, 4, 8, 16, 32)},
        "group": {g: (model, replies(256, 64, g, 1)) for g in (4, 8, 16, 32)},
        "experts": {e: (with_experts(e), replies(128, 64, 8, 4)) for e in (8, 16, 32, 64)},
    }


def slope(sizes: list[int], costs: list[float]) -> float:
    """Of log cost against log size, least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(x, y).slope


def measure(family: dict[int, Case], budget: int, repeats: int) -> dict[str, object]:
    """Seconds and GiB by size, and their slopes."""
    seconds: dict[int, list[float]] = {size: [] for size in family}
    memory: dict[int, list[float]] = {size: [] for size in family}
    runs = {size: one_pass(HFPolicy(model, layout="auto"), made, budget) for size, (model, made) in family.items()}
    for repeat in range(repeats + 1):
        for size, run in runs.items():
            watch, begin = Memory(torch.device("cpu")), time.perf_counter()
            run()
            if repeat:
                seconds[size].append(time.perf_counter() - begin)
                memory[size].append(max(watch.peak(), 1e-3))
    sizes = list(family)
    each = [slope(sizes, [seconds[size][i] for size in sizes]) for i in range(repeats)]
    low, high, _ = median_interval(each)
    median = {size: statistics.median(seconds[size]) for size in sizes}
    return {
        "seconds": median,
        "GiB": {size: statistics.median(memory[size]) for size in sizes},
        "slope": slope(sizes, list(median.values())),
        "low": low,
        "high": high,
        "repeats": repeats,
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=4096, help="train.micro_batch_tokens")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/scaling.json"), help="file for all the numbers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name, family in cases().items():
        results[name] = found = measure(family, options.budget, options.repeats)
        print(
            f"{name}: slope {found['slope']:.2f} [{found['low']:.2f}, {found['high']:.2f}]", found["seconds"], found["GiB"]
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"threads": options.threads, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
