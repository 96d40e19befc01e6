"""How the experts that two readings chose differ, and how unevenly experts are used."""

from __future__ import annotations

import torch
from torch import Tensor


def changed(a: Tensor, b: Tensor) -> Tensor:
    """Share of the k choices of `a` [..., k] that `b` has not, [...] float32, for routes of the same tokens.

    Their order does not count; where `a` is -1, unknown, nothing has changed. Raises ValueError for routes of different
    shapes.
    """
    if a.shape != b.shape:
        raise ValueError(f"routes of shapes {list(a.shape)} and {list(b.shape)} cannot be compared")
    return 1 - ((a[..., :, None] == b[..., None, :]).any(-1) | (a < 0)).float().mean(-1)


def loads(routes: Tensor, experts: int) -> Tensor:
    """How many of the choices in `routes` [layers, N, k] fell on each expert, [layers, experts] int64; -1 is no choice."""
    return torch.stack([torch.bincount(layer[layer >= 0].long(), minlength=experts) for layer in routes])


def max_violation(load: Tensor) -> float:
    """How uneven the load [layers, experts] is: max_e load_e / mean load - 1, mean over the layers (MaxVio, arXiv
    2408.15664).

    0 where all experts get the same number of tokens, experts / k - 1 where all tokens choose the same.
    """
    return sum(float(layer.max() / layer.mean()) - 1 for layer in load.float()) / len(load)
