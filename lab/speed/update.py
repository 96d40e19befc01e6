"""Seconds of one update's forward and backward pass: prompts of P tokens, G completions of R each, by layout, in turns.

A dense model and a mixture of experts of 3 M parameters, float32 (models.py). "padded": a row a completion, as other
frameworks train. "auto": what `gspo train` does; padded rows where it cannot share prompts. Each figure is the median of
paired ratios, at least 5 repeats. roofline: the operations that the forest needs, each token once, at the machine's rate for
a large matrix product, over the time taken; on a GPU this is the model FLOPs utilisation. GiB: the peak of one more pass
above weights and gradients.

On a GPU, with autocast to bfloat16 as `gspo train` has it, and with long completions:
python lab/speed/update.py --device cuda --model 0.6b --layouts padded shared [--checkpointing] [--shape 512 16384 8 1]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chain
import torch
from machine import Memory, matmul_rate, release
from models import MODELS
from paired import median_interval

from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.config.policy import ModelConfig
from gspo.config.training import LAYOUTS
from gspo.learner import layout
from gspo.types import Completion

SHAPES = [(512, 64, 8, 2), (256, 128, 8, 2), (64, 256, 8, 2), (2048, 256, 8, 1), (23, 57, 8, 4)]


def completions(prompt: int, completion: int, group: int, prompts: int) -> list[Completion]:
    """Those of chain.random_groups, each with an advantage of 1 or -1 in turn."""
    batch = []
    for shared, group_completions in chain.random_groups(prompt, completion, group, prompts):
        for i, own in enumerate(group_completions):
            logp = torch.zeros(completion)
            sampled = torch.arange(prompt + completion) >= prompt
            batch.append(Completion(torch.cat([shared, own]), sampled, logp, logp, 1.0 - 2 * (i % 2)))
    return batch


def one_pass(policy: HFPolicy, batch: list[Completion], budget: int) -> Callable[[], None]:
    """The forward and backward passes of an update, as the learner makes them."""

    def run() -> None:
        for part in layout.micro_batches(batch, budget, policy.shares_prompts):
            out = policy.forward(layout.build([batch[i] for i in part], policy.shares_prompts), entropy=True, routing=True)
            out.logp.sum().backward()
        if policy.device.type == "cuda":
            torch.cuda.synchronize()

    return run


def operations(model: HFModel, batch: list[Completion]) -> float:
    """Of a forward and backward pass that computes each token once: products with the weights, and attention."""
    config, forest = model.config, layout.build(batch, share=True).forest
    weights = sum(p.numel() for name, p in model.body.named_parameters() if p.ndim == 2 and "embed" not in name)
    experts = sum(p.numel() for p in model.body.parameters() if p.ndim == 3)  # [experts, ...]
    if experts:
        weights += experts * config.num_experts_per_tok / config.num_experts
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_hidden_layers * config.num_attention_heads * width
    sampled = sum(len(completion.logp_old) for completion in batch)
    looks = float((forest.position + 1).sum())
    return 6 * (weights * len(forest.tokens) + config.vocab_size * config.hidden_size * sampled) + 12 * heads * looks


def reads(batch: list[Completion], budget: int) -> tuple[int, int]:
    """Tokens that padded rows read of micro-batches as `shared` deals them, and those that it reads itself."""
    forests = [layout.build([batch[i] for i in part], True).forest for part in layout.micro_batches(batch, budget, True)]
    return sum(map(layout.places, forests)), sum(len(forest.tokens) for forest in forests)


def peak(run: Callable[[], None], device: torch.device) -> float:
    """GiB of one more pass above what stands before it."""
    release()
    watch = Memory(device)
    run()
    return watch.peak()


def in_turns(runs: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each, after one unrecorded round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats + 1):
        names = list(runs)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            begin = clock()
            runs[name]()
            if i:
                seconds[name].append(clock() - begin)
    return seconds


def compare(model: HFModel, shape: tuple[int, ...], rate: float, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A line a layout, printed and returned. rate: operations a second of a large matrix product."""
    batch, line = completions(*shape), f"P {shape[0]} R {shape[1]} G {shape[2]}, {shape[3]} prompts:"
    policies = {name: HFPolicy(model, layout=name, gradient_checkpointing=options.checkpointing) for name in options.layouts}
    runs = {name: one_pass(policy, batch, options.budget) for name, policy in policies.items()}
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    needed, results = operations(model, batch) / rate, []
    for name, own in (seconds := in_turns(runs, options.repeats, clock)).items():
        ratios = [a / b for a, b in zip(seconds["padded"], own)]
        low, high, _ = median_interval(ratios)
        row = {"layout": name, "seconds": statistics.median(own), "ratio": statistics.median(ratios)}
        row |= {"low": low, "high": high, "repeats": options.repeats, "GiB": peak(runs[name], model.device)}
        row |= {"roofline": needed / row["seconds"] if options.clock == "wall" else math.nan}
        row |= dict(zip(("places", "tokens"), reads(batch, options.budget)))
        results.append({"shape": shape} | row)
        line += f"  {name} {row['seconds']:.3f} s, {row['roofline']:.0%} of the roofline, {row['GiB']:.2f} GiB"
        line += f" ({row['ratio']:.2f} [{low:.2f}, {high:.2f}])"
    print(line, flush=True)
    return results


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--autocast", default="auto", choices=["auto", "none", "bfloat16"], help="model.autocast")
    parser.add_argument("--model", default="3m", choices=list(MODELS), help="size: 0.6b has 0.6 and 1.1 B parameters")
    parser.add_argument("--kinds", nargs="+", default=["dense", "mixture"], choices=["dense", "mixture"])
    parser.add_argument(
        "--shape", type=int, nargs=4, action="append", help="P, R, G and the number of prompts, in place of all"
    )
    parser.add_argument("--checkpointing", action="store_true", help="train.gradient_checkpointing")
    parser.add_argument("--budget", type=int, default=16384, help="train.micro_batch_tokens")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["padded", "auto"])
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for a shared machine")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/update.json"), help="file for all the numbers")
    options = parser.parse_args()
    if options.repeats < 5 or "padded" not in options.layouts:
        parser.error("--repeats must be at least 5, and --layouts must name padded, which the others are compared with")
    torch.set_num_threads(options.threads)
    results: list[dict[str, Any]] = []
    cfg = ModelConfig(device=options.device, autocast=options.autocast)
    rates = {}
    for kind in options.kinds:
        model = MODELS[options.model][kind](cfg)
        size = 8192 if model.device.type == "cuda" else 2048
        rates[kind] = matmul_rate(options.device, model.compute_dtype, size)
        print(f"{kind}, {rates[kind] / 1e9:,.0f} GFLOP/s in a large {model.compute_dtype} product")
        for shape in options.shape or SHAPES:
            results += [{"model": kind} | row for row in compare(model, tuple(shape), rates[kind], options)]
        del model  # there may not be room for two
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"matmul_gflops": {kind: rate / 1e9 for kind, rate in rates.items()}}
    report |= {"threads": options.threads, "clock": options.clock, "torch": torch.__version__, "results": results}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
