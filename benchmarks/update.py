"""Seconds of one update's forward and backward pass: prompts of P tokens, G replies of R each, by layout, in turns.

A dense model and a mixture of experts of 3 M parameters (chain.py), float32. "padded": a row a reply, as other frameworks
train. "auto": what `gspo train` does. Each figure is the median of paired ratios; at least 5 repeats. roofline: the
operations that the forest needs, each token once, at the machine's rate for a large matrix product, over the time taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chain
import torch
from machine import matmul_rate
from paired import median_interval
from transformers import Qwen3MoeForCausalLM

from gspo import layout
from gspo.backends.hf_model import HFModel, wrap_model
from gspo.backends.hf_policy import HFPolicy
from gspo.backends.tiny import build_tiny
from gspo.types import Reply

SHAPES = [(512, 64, 8, 2), (256, 128, 8, 2), (64, 256, 8, 2), (2048, 256, 8, 1), (23, 57, 8, 4)]
CONTEXT = 4096


def dense() -> HFModel:
    """A Qwen3 of the same width and depth as the mixture."""
    shape = {"model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "tie_word_embeddings": True}
    return build_tiny({**shape, "max_position_embeddings": CONTEXT}, chain.make_tokenizer())


def mixture() -> HFModel:
    """The chain model, with a longer context."""
    tokenizer = chain.make_tokenizer()
    config = chain.make_config(tokenizer)
    config.max_position_embeddings = CONTEXT
    torch.manual_seed(0)
    return wrap_model(Qwen3MoeForCausalLM(config), tokenizer)


def replies(prompt: int, reply: int, group: int, prompts: int) -> list[Reply]:
    """Random tokens."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for _ in range(prompts):
        shared = torch.randint(3, 30, (prompt,), generator=draw)
        for _ in range(group):
            tokens = torch.cat([shared, torch.randint(3, 30, (reply,), generator=draw)])
            logp = torch.zeros(reply)
            made.append(Reply(tokens, torch.arange(prompt + reply) >= prompt, logp, logp, 1.0))
    return made


def one_pass(policy: HFPolicy, made: list[Reply], budget: int) -> Callable[[], None]:
    """The forward and backward passes of an update, as the learner makes them."""

    def run() -> None:
        for part in layout.micro_batches(made, budget, policy.shares_prompts):
            out = policy.forward(layout.build(part, policy.shares_prompts), entropy=True, routing=True)
            out.logp.sum().backward()

    return run


def operations(model: HFModel, made: list[Reply]) -> float:
    """Of a forward and backward pass that computes each token once: products with the weights, and attention."""
    config, forest = model.config, layout.build(made, share=True).forest
    weights = sum(p.numel() for name, p in model.body.named_parameters() if p.ndim == 2 and "embed" not in name)
    experts = sum(p.numel() for p in model.body.parameters() if p.ndim == 3)  # [experts, ...]
    if experts:
        weights += experts * config.num_experts_per_tok / config.num_experts
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_hidden_layers * config.num_attention_heads * width
    sampled = sum(len(reply.logp_old) for reply in made)
    looks = float((forest.position + 1).sum())
    return 6 * (weights * len(forest.tokens) + config.vocab_size * config.hidden_size * sampled) + 12 * heads * looks


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


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--budget", type=int, default=16384, help="train.micro_batch_tokens")
    parser.add_argument("--layouts", nargs="+", default=["padded", "auto"])
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for a shared machine")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/update.json"), help="file for all the numbers")
    options = parser.parse_args()
    if options.repeats < 5 or "padded" not in options.layouts:
        parser.error("--repeats must be at least 5, and --layouts must name padded, which the others are compared with")
    torch.set_num_threads(options.threads)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    results: list[dict[str, Any]] = []
    rate = matmul_rate()
    for kind, make in (("dense", dense), ("mixture", mixture)):
        model = make()
        policies = {name: HFPolicy(model, layout=name) for name in options.layouts}
        for shape in SHAPES:
            made = replies(*shape)
            seconds = in_turns({n: one_pass(p, made, options.budget) for n, p in policies.items()}, options.repeats, clock)
            needed = operations(model, made) / rate
            line = f"{kind}, P {shape[0]} R {shape[1]} G {shape[2]}, {shape[3]} prompts:"
            for name, own in seconds.items():
                ratios = [a / b for a, b in zip(seconds["padded"], own)]
                low, high, _ = median_interval(ratios)
                found = {"seconds": statistics.median(own), "ratio": statistics.median(ratios), "low": low, "high": high}
                found |= {"roofline": needed / found["seconds"], "repeats": options.repeats}
                results.append({"model": kind, "shape": shape, "layout": name} | found)
                line += f"  {name} {found['seconds']:.3f} s, {found['roofline']:.0%} of the roofline"
                line += f" ({found['ratio']:.2f} [{low:.2f}, {high:.2f}])"
            print(line, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"matmul_gflops": rate / 1e9}
    report |= {"threads": options.threads, "clock": options.clock, "torch": torch.__version__, "results": results}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
