"""Rounds weights to few bits, like a quantized inference engine."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gspo.backends.hf.routers import routers

BITS = {"int8": 8, "int4": 4}


def quantized(weight: Tensor, kind: str) -> Tensor:
    """`weight` [..., out, in] rounded to `kind`: "int8" or "int4" on a symmetric grid of 2^bits - 1 values, or "fp8" (e4m3),
    each with one scale per output channel; or "bf16", without a scale.
    """
    if kind == "bf16":
        return weight.to(torch.bfloat16).to(weight.dtype)
    largest = torch.finfo(torch.float8_e4m3fn).max if kind == "fp8" else 2 ** (BITS[kind] - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / largest
    if kind == "fp8":
        return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale
    return (weight / scale).round().clamp(-largest, largest) * scale


def rounded_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that an engine rounds: matrices of attention and (expert) MLP layers, not embeddings, head or routers."""
    embeddings = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    exact_ids = {id(p) for module in [*embeddings, *routers(model)] for p in module.parameters()}
    return (p for p in model.parameters() if p.ndim >= 2 and id(p) not in exact_ids)


@torch.no_grad()
def round_weights(model: nn.Module, kind: str) -> None:
    """Rounds the weights of `model` in place (`quantized`)."""
    for p in rounded_weights(model):
        p.copy_(quantized(p, kind))
