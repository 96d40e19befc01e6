"""Drop-in losses for other training programs: from padded rows to a scalar loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from gspo.config.algorithm import resolve
from gspo.config.files import from_dict
from gspo.config.policy import AlgorithmConfig, ResolvedAlgorithm
from gspo.learner.objective import PolicyObjective
from gspo.objective.algorithms import ALGORITHMS, Algorithm
from gspo.objective.completions import Completions

KNOWN = {field.name for field in dataclasses.fields(AlgorithmConfig)}
EFFECTIVE = ("epsilon", "epsilon_high", "epsilon_length", "constants")
METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/tokens", "ratio/mean")


def loss(
    name: str,
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_mu: Tensor | None = None,
    denominator: float | None = None,
    max_completion_length: int | None = None,
    **settings: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of algorithm `name` on padded rows, and its metrics. Without a sampled token, loss and gradient are 0.

    Args:
        name: The algorithm, as in [algorithm].
        logp: Log-probabilities [B, T] of the completion tokens under pi_theta. Padding is removed before any equation.
        logp_old: The same under pi_old.
        advantages: [B], or [B, T] if the program broadcasts them. Only gspo_token, gspo_turn, grpo, grpo_dual and reinforce
            accept [B, T] values that differ within a completion.
        mask: [B, T], nonzero where the policy sampled the token.
        logp_mu: Log-probabilities [B, T] under the sampler; by default logp_old.
        denominator: Number of completions, or of tokens if `counts` says so, by which the sum over this micro-batch is
            divided. The default is their number within it, which is right for micro-batches of equal size. If they differ,
            pass that of the whole update.
        max_completion_length: In tokens; needed by algorithms that also divide by it.
        **settings: epsilon, epsilon_high, epsilon_length and constants of [algorithm].

    Raises:
        ValueError: For mismatched shapes, unknown settings, and settings without effect here: those that need state or
            another forward pass, or belong to the training program.
    """
    _check(logp, logp_old, advantages, mask)
    row, config = _resolved(name, settings)
    if row.counts == "budget" and max_completion_length is None:
        raise ValueError(f"{name} divides by completions x max_completion_length: pass max_completion_length")
    sampled = mask != 0
    if not sampled.any():
        return torch.where(sampled, logp, 0).sum(), dict.fromkeys(METRICS, 0.0) | {"ratio/mean": 1.0}
    length = sampled.sum(1)
    there = length > 0
    begins = sampled.int().diff(dim=1, prepend=sampled.new_zeros(len(sampled), 1).int()) == 1
    y = Completions.of(length[there], begins.cumsum(1)[sampled])  # a gap of unsampled tokens separates two turns
    logp, logp_old, logp_mu = map(_wide, (logp, logp_old, logp_old if logp_mu is None else logp_mu))
    likelihoods = {"logp_old": logp_old[sampled], "logp_mu": logp_mu[sampled]}
    A = advantages[there] if advantages.ndim == 1 else _given(row, name, advantages.expand(sampled.shape), sampled)
    objective = PolicyObjective(row, config, max_completion_length or 1)
    surrogate = objective.surrogate(logp[sampled], A.to(logp), y, likelihoods)
    count = denominator or int(length.sum() if row.counts == "tokens" else there.sum())
    if row.counts == "budget":
        count *= max_completion_length or 1
    ratio = objective.watched(surrogate, logp[sampled], logp_old[sampled], y)
    low, high = surrogate.clipped_low.float().mean(), surrogate.clipped_high.float().mean()
    clipped = y.spread(surrogate.clipped_low | surrogate.clipped_high).float().mean()
    numbers = (low, high, low + high, clipped, ratio.detach().mean())
    return surrogate.loss.sum() / count, dict(zip(METRICS, map(float, numbers)))


def counts(name: str) -> str:
    """What the algorithm divides by: "completions", "tokens", or "budget" for completions x max_completion_length. Raises
    ValueError if `loss` does not have it.
    """
    return _resolved(name, {})[0].counts


def _wide(x: Tensor) -> Tensor:
    """At least float32: near 1 bfloat16 has steps of 4e-3, and a clip range may be 3e-4."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _resolved(name: str, settings: dict[str, Any]) -> tuple[Algorithm, ResolvedAlgorithm]:
    """The algorithm's row and its settings. Raises ValueError for what has no effect, or no place, in a drop-in loss."""
    if idle := [key for key in settings if key in KNOWN and key not in EFFECTIVE]:
        raise ValueError(
            f"{idle[0]} = {settings[idle[0]]!r}: has no effect in a drop-in loss: set it in the program that trains, if it "
            f"has it. What counts here: {', '.join(EFFECTIVE)}"
        )
    row, config, _ = resolve(from_dict({"algorithm": {"name": name, **settings}}).algorithm)
    if config.epsilon == "auto" or row.critic or row.by_group:
        what = "weights within a group" if row.by_group else 'epsilon = "auto" and critics, which learn over many steps,'
        raise ValueError(f"{name}: {what} are not for a drop-in loss: take another algorithm or a fixed range")
    return row, config


def _check(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor) -> None:
    shape = tuple(logp.shape)
    if logp.ndim != 2 or not shape[0]:
        raise ValueError(f"logp: a tensor [B, T] with at least one row is needed, got {list(shape)}")
    for name, x in (("logp_old", logp_old), ("mask", mask)):
        if tuple(x.shape) != shape:
            raise ValueError(f"{name}: shape {list(x.shape)} does not fit logp's {list(shape)}")
    if tuple(advantages.shape) not in (shape, shape[:1], (shape[0], 1)):
        raise ValueError(f"advantages: shape {list(advantages.shape)}; [{shape[0]}] or {list(shape)} is needed")


def _given(row: Algorithm, name: str, advantages: Tensor, sampled: Tensor) -> Tensor:
    """Advantages [B, T] as A_i [S] if constant over the tokens of each completion, else as A_it [N]. Raises ValueError if
    the algorithm takes none per token.
    """
    first = advantages.gather(1, sampled.int().argmax(1, keepdim=True))
    if torch.equal(advantages[sampled], first.expand(sampled.shape)[sampled]):
        return first[sampled.any(1), 0]
    if not row.by_turn:
        able = ", ".join(other for other, its in ALGORITHMS.items() if its.by_turn)
        raise ValueError(
            f"advantages differ within a completion, and {name} takes one advantage a completion: give such, or take {able}"
        )
    return advantages[sampled]
