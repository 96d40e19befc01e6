"""Corrections for the sampler-trainer mismatch: detached weights on the advantages, from r = pi_old/mu.

They are applied after s_i is computed from all sampled tokens, and change no ratio. A token-level algorithm has one weight
per token. A sequence-level one has one term per completion and thus one weight: from the geometric mean of r over the
completion, which its length does not move, or from the product, its exact importance weight.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gspo.objective.completions import Completions
from gspo.objective.losses import bounded


def truncated(r: Tensor, low: float | None, high: float) -> Tensor:
    """Truncated importance sampling: r held within [low, high]."""
    return r.clamp(low, high)


def masked(r: Tensor, low: float | None, high: float) -> Tensor:
    """Masked importance sampling: r within [low, high], else 0."""
    return torch.where((r >= (low or 0.0)) & (r <= high), r, 0.0)


CORRECTIONS: dict[str, Callable[[Tensor, float | None, float], Tensor]] = {
    "tis": truncated, "icepop": masked, "seq_mis": masked,
}  # fmt: skip


def ratio(level: str, over: str, logp_old: Tensor, logp_mu: Tensor, y: Completions) -> Tensor:
    """r = pi_old/mu without gradient: of each completion [S] if `level` is "sequence", else ("turn", "token") at each token
    [N]. over: "mean" for the geometric mean over the tokens of a completion or turn, "product" for their product.
    """
    gap = (logp_old - logp_mu).detach()  # [N]
    if level == "token":
        return bounded(gap).exp()
    whole = y if level == "sequence" else y.turns()
    r = bounded(whole.sum(gap) if over == "product" else whole.mean(gap)).exp()
    return r if level == "sequence" else whole.spread(r)


def least_entropy(entropy: Tensor, share: float) -> float:
    """tau, the lowest of the highest `share` of the entropies H_t [N]: only tokens with H_t >= tau have a gradient (arXiv
    2506.01939).
    """
    return float(entropy.topk(max(1, round(share * len(entropy)))).values[-1])


def off_policy(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, delta: float) -> Tensor:
    """Where off-policy sequence masking removes the term: A < 0 and 1/|y_i| sum_t log( mu(y_it) / pi_theta(y_it) ) > delta
    (DeepSeek-V3.2, arXiv 2512.02556, Eq. 9, whose pi_old is what the sampler returned: mu). Bool, shaped as A, [S] or [N].
    """
    far = y.mean((logp_mu - logp).detach()) > delta  # [S]
    return (A < 0) & (far if A.shape == far.shape else y.spread(far))
