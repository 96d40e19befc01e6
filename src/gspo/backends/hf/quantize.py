"""Weights rounded to few bits, as a coarse inference engine holds them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from gspo.backends.hf.routers import routers

BITS = {"int8": 8, "int4": 4}


def rounded(weight: Tensor, bits: int) -> Tensor:
    """`weight` [..., out, in] on a symmetric grid of 2^bits - 1 values, with one scale for each output channel."""
    top = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / top
    return (weight / scale).round().clamp(-top, top) * scale


def coarse(model: nn.Module) -> Iterator[nn.Parameter]:
    """What an engine rounds: the matrices of attention and (expert) feed-forward layers, not embeddings, head, routers."""
    embeddings = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    exact_ids = {id(p) for module in [*embeddings, *routers(model)] for p in module.parameters()}
    return (p for p in model.parameters() if p.ndim >= 2 and id(p) not in exact_ids)


@torch.no_grad()
def round_weights(model: nn.Module, bits: int) -> None:
    """Rounds the weights of `model` in place."""
    for p in coarse(model):
        p.copy_(rounded(p, bits))
