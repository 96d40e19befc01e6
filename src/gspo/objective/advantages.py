"""Advantages from the rewards of groups."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDING = 1e-12
"""Rewards within this share of 1 + their magnitude count as equal; it exceeds the rounding error of a weighted sum."""


def group_advantages(rewards: Tensor, group: Tensor, scale: str = "group") -> Tensor:
    """A_i = (r_i - mean(r)) / std(r), mean and std over the completions of one group (GSPO, Eq. 6).

    std is the sample standard deviation. A group whose rewards are all equal up to ROUNDING gives exact zeros.

    Args:
        rewards: Rewards [S], float.
        group: Group of each completion [S], int64.
        scale: "group" as above; "batch" divides by the standard deviation of all S rewards; "none" does not divide
            (Dr.GRPO).

    Returns:
        Advantages [S], float64.

    Raises:
        ValueError: If a reward is not finite, or a group has a single completion and thus no baseline.
    """
    r, mean, std = _standards(rewards, group, scale)
    return (r - mean) / std + 0.0  # no -0


def decoupled_advantages(rewards: Tensor, weights: Tensor, group: Tensor) -> Tensor:
    """A_i = a_i / std(a), a_i = sum_k w_k A_ik, with A_ik the advantage of reward k alone in its group, and std over all S
    completions (GDPO, arXiv 2601.05242).

    The paper also subtracts the mean of a, which is 0: the A_ik of a group add up to 0. As in Eq. 6 nothing is added to a
    standard deviation, and equal rewards give exact zeros.

    Args:
        rewards: Rewards r_ik [S, K], NaN where a function did not score the completion: there A_ik is 0, and mean and std
            are those of the others.
        weights: w_k [K].
        group: Group of each completion [S], int64.

    Returns:
        Advantages [S], float64.
    """
    a = torch.zeros(len(rewards), dtype=torch.float64)
    _, index = torch.unique(group, return_inverse=True)
    for r, weight in zip(rewards.double().T, weights.tolist()):
        there = ~r.isnan()
        there &= torch.bincount(index[there], minlength=len(index))[index] >= 2
        a[there] += weight * group_advantages(r[there], group[there])
    a[a.abs() <= ROUNDING * weights.abs().sum()] = 0.0  # what only rounding leaves where rewards cancel
    spread = a.std() if len(a) > 1 else a.new_zeros(())
    return a / spread if spread > 0 else a


def turn_advantages(
    rewards: Sequence[Sequence[float]], group: Tensor, scale: str = "group", discount: float = 1.0
) -> list[Tensor]:
    """A_ik = (G_ik - mean(R)) / std(R) for each turn k of each completion, for GSPO-token (Eq. 14 leaves A_it open).

    G_ik = sum over l >= k of discount^(l - k) r_il is the return to go of a turn, and R_i = G_i1 the return of the whole
    completion; mean and std are taken over the R of a group. With discount 1 and a single reward at the end, every turn gets
    the completion's A_i (Eq. 6). A group whose R are all equal gives zeros.

    Args:
        rewards: Rewards r_ik of the turns of each of S completions.
        group: As in group_advantages.
        scale: As in group_advantages.
        discount: Factor per turn.

    Returns:
        S tensors [turns], float64.

    Raises:
        ValueError: As in group_advantages.
    """
    to_go = [returns_to_go(turns, discount) for turns in rewards]
    whole = torch.stack([G[0] for G in to_go]) if to_go else torch.zeros(0, dtype=torch.float64)
    _, mean, std = _standards(whole, group, scale)
    return [(G - mean[i]) / std[i] + 0.0 for i, G in enumerate(to_go)]


def returns_to_go(rewards: Sequence[float], discount: float) -> Tensor:
    """G_k = r_k + discount G_(k+1), [turns] float64."""
    G = torch.tensor(rewards, dtype=torch.float64)
    for k in range(len(G) - 2, -1, -1):
        G[k] += discount * G[k + 1]
    return G


def expectation_weights(log_q: Tensor) -> Tensor:
    """q_i / E_q[q], E_q[q] = sum_j q_j^2 / sum_j q_j, of the completions of one group (GEPO, arXiv 2508.17850, Eq. 2).
    log_q: log q_i [G]. Returns [G].
    """
    return (log_q - (2 * log_q).logsumexp(0) + log_q.logsumexp(0)).exp()


def _standards(rewards: Tensor, group: Tensor, scale: str) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards r with their standardising mean and std, each [S] float64; std is infinite for a group of equal rewards."""
    r = rewards.double()
    if not torch.isfinite(r).all():
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale = {scale!r}: allowed are group, batch, none")
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    if len(r) and count.min() < 2:
        raise ValueError("a group of one completion has no baseline: every group needs at least 2 rewards")
    zeros = r.new_zeros(len(count))
    mean = (zeros.index_add(0, index, r) / count)[index]
    low = zeros.scatter_reduce(0, index, r, "amin", include_self=False)
    high = zeros.scatter_reduce(0, index, r, "amax", include_self=False)
    flat = high - low <= ROUNDING * (1 + torch.maximum(high.abs(), low.abs()))
    if scale == "none":
        std = torch.ones_like(r)
    elif scale == "batch":
        std = r.std().expand(len(r)) if len(r) > 1 else torch.ones_like(r)
    else:
        std = (zeros.index_add(0, index, (r - mean) ** 2) / (count - 1)).sqrt()[index]
    # Otherwise a rounding error, divided by its own size, would become a full advantage.
    return r, mean, std.masked_fill(flat[index], torch.inf)
