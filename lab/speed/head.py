"""Time and peak memory of log-probabilities from hidden states, forward and backward, at a large vocabulary.

python lab/speed/head.py [--tokens 1024 4096 16384] [--repeats 5] [--cold 16384] [--threads 1] [--device cpu]
                          [--dtype float32] [--frozen] [--entropy] [--out FILE.json]

`full` has all logits and their log_softmax at once; `chunks` checkpoints chunks of tokens, whose logits are formed again in
the backward pass; `ours` is gspo's head. `liger` is the fused loss of Liger where it is installed (GPUs only): it has its
gradients in the forward pass and gives one sum, so it serves losses that are known before. Each is a process of its own;
they take turns. Memory is the peak above what stood before the step (hidden states and weights): resident memory on a CPU,
allocated memory on a GPU. The gradients count. Medians, and medians of paired ratios. What does not fit is left out, and
`chunks` where it would only repeat what fewer tokens said: its memory is one chunk's, so beyond the fewest tokens it runs
only as the base in place of `full`. A first round warms up, but for passes of --cold tokens or more, which take minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from machine import GIB, Memory, free_memory
from paired import Commands, Worker, median_interval, take_turns
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gspo.backends.hf.head import Head

CHUNK = 1 << 26  # logits in a checkpointed chunk: 256 MiB in float32


def plain(states: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    logps = F.linear(states.float(), weight.float()).log_softmax(-1)
    logp = logps.gather(-1, targets[:, None])[:, 0]
    with torch.no_grad():
        return logp, -(logps.exp() * logps).sum(-1) if entropy else None


def chunks(states: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    size, wide = max(1, CHUNK // len(weight)), weight.float()
    parts = [
        checkpoint(plain, h, wide, t, entropy, use_reentrant=False) for h, t in zip(states.split(size), targets.split(size))
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]) if entropy else None


def ours(states: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    return Head(weight).logprobs(states, targets, entropy=entropy)


def liger(states: Tensor, weight: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return -LigerFusedLinearCrossEntropyLoss(reduction="sum")(weight, states, targets), None


VARIANTS: dict[str, Callable[..., tuple[Tensor, Tensor | None]]] = {
    "full": plain,
    "chunks": chunks,
    "ours": ours,
    "liger": liger,
}


def work(variant: str, args: argparse.Namespace) -> None:
    """A worker: forward and backward of one variant, again and again."""
    commands = Commands()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    device, dtype, n = torch.device(args.device), getattr(torch, args.dtype), args.tokens[0]
    # Logits of spread 2.5, so that some words are likely and most are not.
    states = torch.randn(n, args.hidden).to(device, dtype).requires_grad_()
    weight = torch.randn(args.vocabulary, args.hidden).mul_(2.5 / args.hidden**0.5).to(device, dtype)
    weight.requires_grad_(not args.frozen)
    targets, gradient = torch.randint(args.vocabulary, (n,)).to(device), torch.randn(n).to(device)

    def step() -> None:
        logp, _ = VARIANTS[variant](states, weight, targets, args.entropy)
        (logp * (gradient if logp.ndim else 1.0)).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()

    while commands.wait():
        states.grad = weight.grad = None
        memory, start = Memory(device), time.perf_counter()
        step()
        commands.answer({"seconds": time.perf_counter() - start, "GiB": memory.peak()})


def left_out(variant: str, tokens: int, args: argparse.Namespace) -> str | None:
    """Why a variant does not run; None where it does."""
    full = "full" in args.variants and (variant == "full" or not left_out("full", tokens, args))
    if variant == "chunks" and full and tokens > min(args.tokens):
        return "said at fewer tokens"
    if variant == "liger" and not (args.device.startswith("cuda") and importlib.util.find_spec("liger_kernel")):
        return "needs a GPU and liger-kernel"
    need = (4 if args.entropy else 3) * tokens * args.vocabulary * 4 / GIB + 4
    if variant == "full" and need > free_memory(args.device):
        return f"needs about {need:.0f} GiB, {free_memory(args.device):.0f} are free"
    return None


def compare(tokens: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All variants at one number of tokens."""
    results: dict[str, Any] = {}
    for name in args.variants:
        if reason := left_out(name, tokens, args):
            results[name] = {"left_out": reason}
    passed = [f"--{k}={getattr(args, k)}" for k in ("vocabulary", "hidden", "threads", "device", "dtype")]
    passed += [f"--{k}" for k in ("frozen", "entropy") if getattr(args, k)]
    command = [sys.executable, __file__, f"--tokens={tokens}", *passed, "--worker"]
    workers = [Worker(name, [*command, name], folder / f"{name}.log") for name in args.variants if name not in results]
    try:
        steps = take_turns(workers, args.repeats, int(tokens < args.cold))
    finally:
        for worker in workers:
            worker.close()
    base = next((name for name in ("full", "chunks") if name in steps), None)
    for name, runs in steps.items():
        seconds = [run["seconds"] for run in runs]
        results[name] = {"seconds": statistics.median(seconds), "GiB": statistics.median(run["GiB"] for run in runs)}
        if base is not None:
            ratios = [a / b["seconds"] for a, b in zip(seconds, steps[base])]
            results[name] |= {f"to_{base}": statistics.median(ratios), "interval": median_interval(ratios)[:2]}
    return {"tokens": tokens, "variants": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of states and weight")
    parser.add_argument("--frozen", action="store_true", help="the weight needs no gradient, as with LoRA")
    parser.add_argument("--entropy", action="store_true", help="entropies as well")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", type=int, default=16384, help="tokens from which no round warms up")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--worker", choices=list(VARIANTS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args)
        return
    results = []
    for tokens in args.tokens:
        with tempfile.TemporaryDirectory() as folder:
            results.append(compare(tokens, args, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
        if args.out:
            settings = {k: v for k, v in vars(args).items() if k not in ("out", "worker")}
            args.out.write_text(json.dumps({**settings, "torch": torch.__version__, "results": results}, indent=1))


if __name__ == "__main__":
    main()
