"""Where the time of a step goes: operations and kernels of an update and of sampling, by torch's profiler.

    python lab/speed/profiled.py [--device cuda --model 0.6b] [--kind dense] [--rows 24]

An update is the forward and backward passes of 128 completions of 256 tokens to prompts of 128 (smaller for the model of
3 M), padded; sampling is of as many, half as long. Each is timed more than once before it is profiled: at first all shapes
are new.
"""

from __future__ import annotations

import argparse
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

SIZES = {"0.6b": (128, 256, 8, 16), "3m": (16, 16, 4, 2)}  # P, R, G and prompts


def told(what: str, work: Callable[[], object], device: str, times: int, rows: int) -> None:
    """Prints the seconds of each time, and the table of one more."""
    on_gpu = device.startswith("cuda")

    def whole() -> None:
        work()
        if on_gpu:
            torch.cuda.synchronize()

    for number in range(times):
        begin = time.perf_counter()
        whole()
        print(f"{what} {number}: {time.perf_counter() - begin:.3f} s", flush=True)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as found:
        whole()
    by = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=by, row_limit=rows, max_name_column_width=70), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="3m", choices=list(SIZES), help="size: 0.6b has 0.6 and 1.1 B parameters")
    parser.add_argument("--kind", default="dense", choices=["dense", "mixture"])
    parser.add_argument("--rows", type=int, default=24, help="of each table")
    options = parser.parse_args()
    P, R, G, count = SIZES[options.model]
    model = MODELS[options.model][options.kind](ModelConfig(device=options.device))
    work = update.one_pass(HFPolicy(model, layout="padded"), update.completions(P, R, G, count), 16_384)
    told("update", work, options.device, 4, options.rows)
    sampler, prompts = HFSampler(model, G * count), [Prompt(str(i), "", (5 + i,) * P) for i in range(count)]
    sampling = Sampling(R // 2, stop_ids=(), seed=0)
    told("sampling", lambda: sampler.generate(prompts, G, sampling), options.device, 2, options.rows)


if __name__ == "__main__":
    main()
