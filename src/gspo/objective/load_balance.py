"""The auxiliary loss that balances the load of the experts."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.objective.completions import Completions


def balance(logits: Tensor, chosen: Tensor, y: Completions) -> Tensor:
    """Load-balancing loss sum_e f_e P_e of each completion [S], averaged over layers.

    It is 1 for an even load and E/k if all tokens choose the same k experts. f_e is E/k times the share of the completion's
    tokens that chose e, without gradient; P_e is the mean of softmax(logits)_e over its tokens. The loss of arXiv 2101.03961
    (Eq. 4 to 6) is applied per completion, as in arXiv 2412.19437 (Eq. 17 to 20): a sum over completions, so its gradient
    does not depend on the split into micro-batches. logits: of the routers, [N, layers, E]. chosen: experts [N, layers, k].
    """
    experts, k = logits.shape[-1], chosen.shape[-1]
    took = torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, chosen.long(), 1.0)
    f, P = _means(took, y) * (experts / k), _means(logits.float().softmax(-1), y)
    return (f * P).sum(-1).mean(-1)


def _means(x: Tensor, y: Completions) -> Tensor:
    """Mean over each completion's tokens: [N, ...] -> [S, ...]."""
    sums = x.new_zeros(len(y.length), *x.shape[1:]).index_add(0, y.completion, x)
    return sums / y.length.view(-1, *[1] * (x.ndim - 1))
