"""Where the time of a step goes: operations and kernels of an update and of sampling, by torch's profiler.

    python lab/speed/profiled.py [--device cuda --model 0.6b] [--kind dense] [--rows 24]

An update is the forward and backward passes of G completions to each of some prompts, in the layout `auto`; see SIZES. Each
work is timed several times before it is profiled: at first all shapes are new. Then each matrix product is repeated alone:
the share of the matmul rate is the time that the products take alone over the time of the whole.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import update
from models import MODELS
from torch.profiler import ProfilerActivity, profile

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.config.policy import ModelConfig
from gspo.types import Prompt, Sampling

# Tokens of a prompt and of a completion, completions of a prompt; prompts of an update and of a rollout batch.
SIZES = {"0.6b": (128, 256, 8, 16, 16), "3m": (16, 16, 4, 2, 2), "smollm2": (64, 32, 8, 2, 8)}
PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::addmm_": 1}  # where the first factor stands


def alone(factors: list[list[int]], device: str) -> float:
    """Seconds of a product of matrices of these shapes, by itself: the faster one of B and B transposed, median of 30. As in
    a model, one product's B is not the next one's, so that it comes from memory.
    """
    a, found = torch.randn(factors[0], device=device), []
    b = torch.randn(min(30, 2 + 2**27 // math.prod(factors[1])), *factors[1], device=device)
    for second in (b, b.transpose(-1, -2).contiguous().transpose(-1, -2)):
        seconds = []
        for i in range(31):
            begin = time.perf_counter()
            a @ second[i % len(second)]
            seconds.append(time.perf_counter() - begin)
        found.append(statistics.median(seconds[1:]))
    return min(found)


def show(what: str, work: Callable[[], object], device: str, times: int, rows: int) -> None:
    """Prints the seconds of each time, the table of one more, and on a CPU the share of the matmul rate."""
    on_gpu, seconds = device.startswith("cuda"), []

    def whole() -> None:
        work()
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(times):
        begin = time.perf_counter()
        whole()
        seconds.append(time.perf_counter() - begin)
    print(f"{what}: {', '.join(f'{each:.3f}' for each in seconds)} s", flush=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, record_shapes=True) as found:
        whole()
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=by, row_limit=rows, max_name_column_width=70), flush=True)
    if not on_gpu:
        products = [row for row in found.key_averages(group_by_input_shape=True) if row.key in PRODUCTS]
        needed = sum(row.count * alone(row.input_shapes[PRODUCTS[row.key] :][:2], device) for row in products)
        taken, least = sum(row.self_cpu_time_total for row in products) / 1e6, statistics.median(seconds[1:])
        print(
            f"{what}: {least:.3f} s; matrix products {taken:.3f} s, alone {needed:.3f} s: {needed / least:.0%} of their rate"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="3m", choices=list(SIZES), help="0.6b has 0.6 and 1.1 B parameters")
    parser.add_argument("--kind", default="dense", choices=["dense", "mixture"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autocast", default="auto", choices=["auto", "none", "bfloat16"])
    parser.add_argument("--rows", type=int, default=24, help="of each table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    P, R, G, count, more = SIZES[options.model]
    model = MODELS[options.model][options.kind](ModelConfig(device=options.device, autocast=options.autocast))
    work = update.one_pass(HFPolicy(model, layout="auto"), update.completions(P, R, G, count), 16_384)
    show("update", work, options.device, 5, options.rows)
    sampler, prompts = HFSampler(model, G * more), [Prompt(str(i), "", (5 + i,) * P) for i in range(more)]
    sampling = Sampling(R, stop_ids=(), seed=0)
    show("sampling", lambda: sampler.generate(prompts, G, sampling), options.device, 4, options.rows)


if __name__ == "__main__":
    main()
