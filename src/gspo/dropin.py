"""The objectives for those who train with another program: from its padded rows to one number to minimise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gspo.config.files import from_dict
from gspo.learner.algorithm import resolve
from gspo.learner.objective import PolicyObjective
from gspo.objective.completions import Completions
from gspo.objective.losses import sequence_ratio


def loss(
    name: str, logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, logp_mu: Tensor | None = None,
    denominator: float | None = None, max_completion_length: int | None = None, **settings: Any,
) -> tuple[Tensor, dict[str, float]]:  # fmt: skip
    """The loss of the algorithm `name` on padded rows, and its metrics.

    logp, logp_old, logp_mu [B, T]: log-probabilities of the completions' tokens under pi_theta, pi_old and the sampler
    (unset: pi_old). mask [B, T]: nonzero where the policy sampled the token. advantages [B], or [B, T] as some programs
    spread them. settings: of [algorithm], such as epsilon. denominator: what the sum over this micro-batch is divided by;
    unset, what the algorithm counts within it: right for micro-batches of equal size, so pass the whole update's count where
    they differ.

    Padding leaves before any equation. Raises ValueError for shapes that do not fit, for settings that the algorithm has
    not, and for those that need state or another pass: epsilon = "auto", beta, correction, aux_loss, a critic.
    """
    _check(logp, logp_old, advantages, mask)
    row, config, _ = resolve(from_dict({"algorithm": {"name": name, **settings}}).algorithm)
    if config.epsilon == "auto" or config.beta or config.correction != "none" or config.aux_loss or row.critic:
        raise ValueError(f'{name}: epsilon = "auto", beta, correction, aux_loss and critics are not for a drop-in loss')
    if row.counts == "budget" and max_completion_length is None:
        raise ValueError(f"{name} divides by completions x max_completion_length: pass max_completion_length")
    sampled = mask != 0
    length = sampled.sum(1)
    there = length > 0
    begins = sampled.int().diff(dim=1, prepend=sampled.new_zeros(len(sampled), 1).int()) == 1
    y = Completions.of(length[there], begins.cumsum(1)[sampled])  # what was not sampled in between parts two turns
    likelihoods = {"logp_old": logp_old[sampled], "logp_mu": (logp_old if logp_mu is None else logp_mu)[sampled]}
    A = advantages[there] if advantages.ndim == 1 else _by_completion(advantages, sampled)[there]
    objective = PolicyObjective(row, config, max_completion_length or 1)
    surrogate = objective.surrogate(logp[sampled], A.to(logp), y, likelihoods)
    counts = {"completions": int(there.sum()), "tokens": int(length.sum())}
    count = denominator or counts.get(row.counts) or counts["completions"] * (max_completion_length or 1)
    ratio = sequence_ratio(logp[sampled], logp_old[sampled], y) if row.level == "sequence" else surrogate.ratio
    low, high = surrogate.clipped_low.float().mean(), surrogate.clipped_high.float().mean()
    metrics = {
        "clip_ratio/low_mean": float(low), "clip_ratio/high_mean": float(high), "clip_ratio/region_mean": float(low + high),
        "clip_ratio/tokens": float(y.spread(surrogate.clipped_low | surrogate.clipped_high).float().mean()),
        "ratio/mean": float(ratio.detach().mean()),
    }  # fmt: skip
    return surrogate.loss.sum() / count, metrics


def _check(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor) -> None:
    shape = tuple(logp.shape)
    if logp.ndim != 2 or not shape[0]:
        raise ValueError(f"logp: a tensor [B, T] with at least one row is needed, got {list(shape)}")
    for name, x in (("logp_old", logp_old), ("mask", mask)):
        if tuple(x.shape) != shape:
            raise ValueError(f"{name}: shape {list(x.shape)} does not fit logp's {list(shape)}")
    if tuple(advantages.shape) not in (shape, shape[:1], (shape[0], 1)):
        raise ValueError(f"advantages: shape {list(advantages.shape)}; [{shape[0]}] or {list(shape)} is needed")
    if not bool((mask != 0).any()):
        raise ValueError("mask: no token was sampled, so there is nothing to learn")


def _by_completion(advantages: Tensor, sampled: Tensor) -> Tensor:
    """A_i [B] of advantages [B, T] that are the same at all sampled tokens of a completion. Raises ValueError where not."""
    wide = advantages.expand(sampled.shape)
    first = wide.gather(1, sampled.int().argmax(1, keepdim=True))
    if not torch.equal(torch.where(sampled, wide, first), first.expand(sampled.shape)):
        raise ValueError("advantages differ within a completion: these objectives take one advantage a completion")
    return first[:, 0]
