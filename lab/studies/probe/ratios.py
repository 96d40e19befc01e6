"""What the ratios of a batch are like: spread, drift, tail, and what a clip takes from them. No gradient is needed.

l [N] is the log-ratio of each sampled token, log pi_theta - log pi_old, and log s_i its mean over completion i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gspo.learner.objective import PolicyObjective
from gspo.objective.completions import Completions
from gspo.objective.mismatch import std

TAIL = 0.005  # share of the tokens that the tail index is taken from
FEWEST = 20  # tokens of a tail, and completions of a length


def describe(l: Tensor, y: Completions) -> dict[str, float | None]:
    """sd_token: standard deviation of l. sd_completion, drift: standard deviation and mean of log s_i. kl: nats a token,
    KL(pi_old || pi_theta) by k3. ess: effective sample size of the weights e^l, as a share of N. beyond_2x: share of tokens
    whose ratio is above 2 or below 1/2. top: share of the sum of l^2 that 1 % of the tokens have. tail: as in `tail_index`.
    """
    l = l.double()
    w, square = l.clamp(max=20.0).exp(), (l * l).sort(descending=True).values
    total = float(square.sum())
    return {
        "sd_token": std(l),
        "sd_completion": std(y.mean(l)),
        "drift": float(y.mean(l).mean()),
        "kl": float((w - 1 - l).mean()),
        "ess": float(w.sum() ** 2 / (w * w).sum() / len(l)),
        "beyond_2x": float((l.abs() > math.log(2)).double().mean()),
        "top": float(square[: max(1, len(l) // 100)].sum()) / total if total else None,
        "tail": tail_index(l),
    }


def tail_index(l: Tensor) -> float | None:
    """Hill's estimate of the index a of a tail P(|l| > x) ~ x^-a, from the largest values: below 2 the variance is infinite.
    None where there are too few tokens, or too few that moved.
    """
    size = l.abs().sort(descending=True).values
    k = max(FEWEST, int(TAIL * len(l)))
    if k >= len(l) or float(size[k]) <= 0:
        return None
    mean = float((size[:k] / size[k]).log().mean())
    return 1 / mean if mean > 0 else None


def by_length(l: Tensor, y: Completions) -> list[tuple[int, float, float]]:
    """(T, standard deviation, mean) of log s over the first T tokens, T = 4, 8, ... All of the same completions: those as
    long as the last T, which a quarter of all are.
    """
    lengths, long = _lengths(y)
    parts = [part for part, kept in zip(l.double().split(y.length.tolist()), long) if kept]
    means = {T: torch.stack([part[:T].mean() for part in parts]) for T in lengths}
    return [(T, std(values), float(values.mean())) for T, values in means.items()]


def _lengths(y: Completions) -> tuple[list[int], list[bool]]:
    """The lengths to compare, and which completions have them all."""
    last, least = 0, max(FEWEST, len(y.length) / 4)
    while int((y.length >= 4 * 2**last).sum()) >= least:
        last += 1
    lengths = [4 * 2**i for i in range(last)]
    return lengths, (y.length >= max(lengths, default=0)).tolist()


def exponent(l: Tensor, y: Completions, group: Sequence[int], resamples: int = 200) -> tuple[float, float, float] | None:
    """b of sd(log s) ~ T^b and its 95 % interval, by resampling groups: -1/2 where tokens are independent. None where the
    completions are too short for three lengths. group [S]: whose each is.
    """
    lengths, long = _lengths(y)
    if len(lengths) < 3:
        return None
    parts = [part for part, kept in zip(l.double().split(y.length.tolist()), long) if kept]
    owners = np.asarray(group)[long]
    x = np.array([[float(part[:T].mean()) for T in lengths] for part in parts])

    def slope(counts: np.ndarray) -> float:
        n = counts[owners]
        if n.sum() < 2:
            return math.nan
        variance = np.average((x - np.average(x, axis=0, weights=n)) ** 2, axis=0, weights=n)
        return float(np.polyfit(np.log(lengths), 0.5 * np.log(variance), 1)[0]) if (variance > 0).all() else math.nan

    size = int(owners.max()) + 1
    rng = np.random.default_rng(0)
    drawn = [slope(rng.multinomial(size, np.full(size, 1 / size))) for _ in range(resamples)]
    whole, kept = slope(np.ones(size)), [value for value in drawn if math.isfinite(value)]
    if not math.isfinite(whole) or len(kept) < 0.9 * resamples:
        return None
    low, high = np.quantile(kept, [0.025, 0.975])
    return whole, float(low), float(high)


def clipped_shares(
    objective: PolicyObjective, logp: Tensor, y: Completions, likelihoods: dict[str, Tensor]
) -> tuple[float, float]:
    """The shares of tokens that the clip takes the gradient from where A < 0, and where A > 0: each as if all had that sign,
    so that rewards do not matter.
    """

    def share(sign: float) -> float:
        surrogate = objective.surrogate(logp, torch.full(y.length.shape, sign).to(logp), y, likelihoods)
        return float(y.spread(surrogate.clipped_low | surrogate.clipped_high).double().mean())

    return share(-1.0), share(1.0)
