"""The auxiliary loss that keeps the load of the experts even."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.objective.completions import Completions


def balance(logits: Tensor, chosen: Tensor, y: Completions) -> Tensor:
    """sum_e f_e P_e of each completion [S], mean over layers: 1 for an even load, E/k where all tokens choose the same k.

    logits [N, layers, E]: the routers'. chosen [N, layers, k]: the experts taken. f_e = E/k times the share of the
    completion's tokens that took e, without gradient; P_e: mean over its tokens of softmax(logits)_e. Load-balancing loss of
    arXiv 2101.03961 (Eq. 4 to 6) over each completion, as arXiv 2412.19437 (Eq. 17 to 20) has it: a sum over completions, so
    that micro-batches change no gradient.
    """
    experts, k = logits.shape[-1], chosen.shape[-1]
    took = torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, chosen.long(), 1.0)
    f, P = _means(took, y) * (experts / k), _means(logits.float().softmax(-1), y)
    return (f * P).sum(-1).mean(-1)


def _means(x: Tensor, y: Completions) -> Tensor:
    """Mean over each completion's tokens: [N, ...] -> [S, ...]."""
    sums = x.new_zeros(len(y.length), *x.shape[1:]).index_add(0, y.completion, x)
    return sums / y.length.view(-1, *[1] * (x.ndim - 1))
