"""How two routings of the same tokens differ, and how unevenly the experts are used."""

from __future__ import annotations

import torch
from torch import Tensor


def changed(a: Tensor, b: Tensor) -> Tensor:
    """Share of the k choices of `a` [..., k] that are not in `b`, [...] float32, for routes of the same tokens.

    Order does not count, and an unknown choice (-1 in `a`) counts as unchanged. Raises ValueError if the shapes differ.
    """
    if a.shape != b.shape:
        raise ValueError(f"routes of shapes {list(a.shape)} and {list(b.shape)} cannot be compared")
    return 1 - ((a[..., :, None] == b[..., None, :]).any(-1) | (a < 0)).float().mean(-1)


def loads(routes: Tensor, experts: int) -> Tensor:
    """Number of choices of each expert in `routes` [layers, N, k], [layers, experts] int64; -1 is no choice."""
    return torch.stack([torch.bincount(layer[layer >= 0].long(), minlength=experts) for layer in routes])


def max_violation(load: Tensor) -> float:
    """Imbalance of the load [layers, experts]: max_e load_e / mean load - 1, averaged over layers (MaxVio, arXiv
    2408.15664).

    0 if all experts get the same number of tokens, experts / k - 1 if all tokens choose the same k.
    """
    return sum(float(layer.max() / layer.mean()) - 1 for layer in load.float()) / len(load)
