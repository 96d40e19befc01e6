"""Adapters on a mixture's experts: a forward and backward pass here against PEFT's own, and on weights of few bits.

    python lab/speed/adapters.py [--rounds N]

Times are taken in turn within one process, and told as medians of ratios with their quartiles. kept: what autograd keeps for
the backward pass.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from gspo.backends.hf.lora import Adapted, adapted, packed
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import LoraConfig, ModelConfig

SHAPE = {"hidden": 256, "layers": 4, "experts": 32, "expert_width": 128, "heads": 4, "kv_heads": 2, "context": 2048}
TOKENS = 1024


def made(kind: str) -> Adapted:
    """The model with adapters on all linear layers and experts. kind: "ours", "peft", or of model.quantize."""
    tokenizer = longest_match_tokenizer([*"abcdefghijklmnopqrstuvwxyz "])
    model = adapted(build_tiny(tiny_qwen3_moe(**SHAPE), tokenizer), LoraConfig(rank=16, targets=["all-linear", "experts"]))
    for module in model.model.modules():
        if kind == "peft" and type(module).__name__ == "ParamWrapper":
            del module.forward
    return packed(model, ModelConfig(quantize=kind, device="cpu")) if kind in ("nf4", "int8") else model


def one_pass(model: Adapted, ids: torch.Tensor) -> tuple[float, int]:
    """Seconds, and bytes that were kept."""
    kept: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    own = {p.untyped_storage().data_ptr() for p in [*model.model.parameters(), *model.model.buffers()]}
    begin = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss = model.hidden(input_ids=ids).square().mean()
    loss.backward()
    seconds = time.perf_counter() - begin
    model.model.zero_grad()
    return seconds, sum(size for at, size in kept.items() if at not in own)


def held(model: Adapted) -> int:
    """Bytes of its weights."""
    return sum(x.numel() * x.element_size() for x in [*model.model.parameters(), *model.model.buffers()])


def main() -> None:
    """Prints a line a kind."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    ids = torch.randint(3, 20, (4, TOKENS // 4), generator=torch.Generator().manual_seed(0))
    models = {kind: made(kind) for kind in ("ours", "peft", "nf4", "int8")}
    times: dict[str, list[float]] = {kind: [] for kind in models}
    kept: dict[str, int] = {}
    for number in range(rounds + 2):
        for kind, model in models.items():
            seconds, kept[kind] = one_pass(model, ids)
            times[kind] += [seconds] if number > 1 else []
    print(f"{'':6} {'seconds':>8} {'of ours':>8} {'quartiles':>14} {'weights, MB':>12} {'kept, MB':>9}")
    for kind, model in models.items():
        ratios = sorted(a / b for a, b in zip(times[kind], times["ours"]))
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{kind:6} {statistics.median(times[kind]):8.3f} {middle:8.2f} {f'{low:.2f} to {high:.2f}':>14} "
            f"{held(model) / 1e6:12.1f} {kept[kind] / 1e6:9.1f}"
        )


if __name__ == "__main__":
    main()
