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

COV_LOW, COV_HIGH = 1.0, 5.0  # bounds of Clip-Cov, as published


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


def covariant(logp: Tensor, A: Tensor, share: float, draw: Tensor | None = None) -> Tensor:
    """Indices of a share of the N tokens, at least of one, by Cov_t = (log pi(y_t) - mean log pi) (A_t - mean A), with means
    over all N (arXiv 2505.22617). KL-Cov: those of highest Cov_t above 0; of equal ones the first. Clip-Cov, if there is a
    draw [N], uniform in [0, 1): those with the lowest draw among the tokens with Cov_t in [1, 5]. There may be fewer.
    """
    cov = (logp - logp.mean()) * (A - A.mean())
    order = -cov if draw is None else torch.where((cov >= COV_LOW) & (cov <= COV_HIGH), draw, torch.inf)
    first = order.argsort(stable=True)[: max(1, round(share * len(cov)))]
    return first[cov[first] > 0 if draw is None else order[first] < torch.inf]


def off_policy(logp: Tensor, logp_mu: Tensor, A: Tensor, y: Completions, delta: float) -> Tensor:
    """Where off-policy sequence masking removes the term: A < 0 and 1/|y_i| sum_t log( mu(y_it) / pi_theta(y_it) ) > delta
    (DeepSeek-V3.2, arXiv 2512.02556, Eq. 9, whose pi_old is what the sampler returned: mu). Bool, shaped as A, [S] or [N].
    """
    far = y.mean((logp_mu - logp).detach()) > delta  # [S]
    return (A < 0) & (far if A.shape == far.shape else y.spread(far))
