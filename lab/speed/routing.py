"""What recording the experts and Routing Replay cost: time and peak memory of sampling and of an update's passes.

python lab/speed/routing.py [--prompts 8] [--repeats 15] [--threads 1] [--checkpointing] [--device cpu] [--out FILE.json]

Everything runs in turns within each repeat. `plain` knows nothing of routers; `record` keeps the experts and the routers'
entropies, as every update of a mixture of experts does; `replay` gives the routers the sampler's experts and records as
well. `R2's own pass` reads all tokens once without gradient, as R2 must before the first update of a step; the forward
and backward passes are those of all updates of a step together. Ratios are medians of paired ratios with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import transformers
from chain import COMPLETION_TOKENS, make_config, make_tokenizer
from paired import median_interval
from sampling import G, make_prompts
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen3MoeForCausalLM

from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from gspo.types import Completion, Prompt, Rollout, Sampling

PROMPT_TOKENS = 40
MODELS: dict[str, dict[str, int]] = {
    "chain": {},  # 4 layers, 2 of 16 experts
    "many experts": {"num_hidden_layers": 12, "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 64},
}
Runs = dict[str, Callable[[], object]]


def make_model(name: str, device: str) -> HFModel:
    """The chain task's model, or one of its kind with more layers and experts; random weights."""
    tokenizer = make_tokenizer()
    config = make_config(tokenizer)
    config.update(MODELS[name])
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM._from_config(config, experts_implementation="grouped_mm")
    return wrap_model(model.to(device), tokenizer, ModelConfig(device=device, autocast="none"))


def completion_of(rollout: Rollout) -> Completion:
    """A completion to learn from, with the sampler's experts."""
    logp = rollout.logp[rollout.sampled]
    return Completion(rollout.tokens, rollout.sampled, logp, logp, 1.0, routes=rollout.routes)


def sampling_runs(model: HFModel, prompts: Sequence[Prompt]) -> Runs:
    """`generate`, without and with the experts."""
    sampler = HFSampler(model)

    def run(routes: bool) -> list[Rollout]:
        return sampler.generate(prompts, G, Sampling(max_new_tokens=COMPLETION_TOKENS, seed=1, routes=routes))

    return {"plain": lambda: run(False), "record": lambda: run(True)}


def learning_runs(policy: HFPolicy, completions: Sequence[Completion]) -> Runs:
    """Forward and backward passes over the completions, in one batch."""
    batch = layout.build(completions, policy.shares_prompts)

    def learn(routing: bool, replay: bool) -> float:
        out = policy.forward(batch, entropy=True, routing=routing, replay=replay)  # kept, as the learner does
        out.logp.mean().backward()
        for p in policy.parameters():
            p.grad = None
        return float(out.logp.detach().sum())  # waits for a GPU

    def read() -> float:
        with torch.no_grad():
            return float(policy.forward(batch, routing=True).logp.sum())

    return {
        "plain": lambda: learn(False, False),
        "record": lambda: learn(True, False),
        "replay": lambda: learn(True, True),
        "R2's own pass": read,
    }


def peak_memory(run: Callable[[], object], device: str) -> int:
    """Most bytes of tensors at once, above those at the start."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    assert prof.profiler is not None and prof.profiler.kineto_results is not None
    changes = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def compare(runs: Runs, repeats: int, device: str) -> dict[str, dict[str, float]]:
    """Seconds of each, its ratio to `plain` paired in a repeat, and its peak memory. The first two rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for repeat in range(-2, repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            runs[name]()
            if repeat >= 0:
                seconds[name].append(time.perf_counter() - start)
    results = {}
    for name in names:
        ratios = [a / b for a, b in zip(seconds[name], seconds["plain"])]
        low, high, _ = median_interval(ratios)
        results[name] = {
            "seconds": statistics.median(seconds[name]),
            "ratio": statistics.median(ratios),
            "low": low,
            "high": high,
            "peak_bytes": peak_memory(runs[name], device),
        }
    return results


def show(title: str, results: dict[str, dict[str, float]]) -> None:
    """Print a table."""
    print(f"{title:22} {'seconds':>9} {'ratio to plain':>22} {'peak MiB':>10} {'more KiB':>10}")
    for name, row in results.items():
        ratio = "" if name == "plain" else f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
        more = max(0, row["peak_bytes"] - results["plain"]["peak_bytes"]) / 2**10
        print(f"  {name:20} {row['seconds']:9.4f} {ratio:>22} {row['peak_bytes'] / 2**20:10.2f} {more:10.1f}", flush=True)


def measure(name: str, args: argparse.Namespace) -> dict[str, object]:
    """Sampling, then learning on what was sampled, of one model."""
    model = make_model(name, args.device)
    prompts = make_prompts(model, args.prompts, PROMPT_TOKENS)
    sampled = sampling_runs(model, prompts)
    completions = [completion_of(rollout) for rollout in sampled["record"]()]  # type: ignore[attr-defined]
    routes = [completion.routes for completion in completions]
    size = sum(route.nbytes for route in routes)
    tokens = sum(len(route) for route in routes)
    per_token = size / tokens
    config, size_m = model.config, sum(p.numel() for p in model.model.parameters()) / 1e6
    print(
        f"{name}: {size_m:.1f} M parameters, {config.num_hidden_layers} layers, {config.num_experts_per_tok} of "
        f"{config.num_experts} experts; {len(completions)} completions, {tokens} tokens; "
        f"{per_token:.0f} bytes of routes a token, {size / 2**10:.0f} KiB in all"
    )
    results = {"sample": compare(sampled, args.repeats, args.device)}
    show("sample", results["sample"])
    policy = HFPolicy(model, gradient_checkpointing=args.checkpointing)
    results["learn"] = compare(learning_runs(policy, completions), args.repeats, args.device)
    show("forward and backward" + (", checkpointed" if args.checkpointing else ""), results["learn"])
    return {"model": name, "tokens": tokens, "route_bytes_per_token": per_token, **results}


def main() -> None:
    """Measure, print, write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=8, help=f"each with {G} completions of {COMPLETION_TOKENS} tokens")
    parser.add_argument("--repeats", type=int, default=15, help="at least 6, for an interval")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--checkpointing", action="store_true", help="with gradient checkpointing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the results to this file")
    args = parser.parse_args()
    if args.repeats < 6:
        parser.error(f"--repeats {args.repeats}: at least 6")
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    report = {
        "threads": args.threads,
        "checkpointing": args.checkpointing,
        "repeats": args.repeats,
        "device": args.device,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "results": [measure(name, args) for name in args.models],
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
