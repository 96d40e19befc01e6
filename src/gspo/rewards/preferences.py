"""Rewards from preferences within a group: pairwise outcomes or ranks become one number per completion. All in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

PRIOR = 1.0  # virtual ties of each completion with one of strength 0, so that one that won every game has a finite strength
STEPS = 100  # maximum Newton steps; about ten are enough
CLOSE = 1e-12  # convergence threshold of the gradient, as a share of the games
ROUNDING = 1e-12  # relative, of the objective: a smaller decrease may in fact be an increase
DIGITS = 8  # decimals of a strength: further ones depend on the order of completions and on the processor


def wins(n: int, outcomes: Iterable[tuple[int, int, float]]) -> np.ndarray:
    """W [n, n]: games that i won against j, from outcomes (i, j, o): o = 1 if i was better, 0 if j was, 0.5 for a tie.

    Cycles and repeated games are allowed. Raises ValueError for an index out of range, a game against itself, or an o
    outside [0, 1].
    """
    games = np.zeros((n, n))
    for i, j, outcome in outcomes:
        if not (0 <= i < n and 0 <= j < n) or i == j:
            raise ValueError(
                f"outcome ({i}, {j}, {outcome}): expected two different completions, numbered from 0 to {n - 1}"
            )
        if not 0 <= outcome <= 1:  # rejects NaN too
            raise ValueError(f"outcome ({i}, {j}, {outcome}): expected 1 (the first is better), 0.5 (a tie) or 0")
        games[i, j] += outcome
        games[j, i] += 1 - outcome
    return games


def bradley_terry(games: np.ndarray) -> list[float | None]:
    """Strengths theta in nats, where P(i beats j) = sigmoid(theta_i - theta_j); None for a completion without games.

    With W as returned by `wins`, theta maximises

        sum_ij W_ij log sigmoid(theta_i - theta_j) + PRIOR/2 sum_i [log sigmoid(theta_i) + log sigmoid(-theta_i)],

    which is strictly concave, by Newton's method with step halving. Strengths are rounded, so that completions with the same
    games have equal strengths.
    """
    theta = np.zeros(len(games))
    value = _log_posterior(theta, games)
    for _ in range(STEPS):
        p = _sigmoid(theta[:, None] - theta[None, :])
        own = _sigmoid(theta)
        slope = (games * (1 - p)).sum(1) - (games.T * p).sum(1) + PRIOR * (0.5 - own)
        if np.abs(slope).max(initial=0.0) < CLOSE * (PRIOR + games.sum()):
            break
        weight = (games + games.T) * p * (1 - p)
        curvature = np.diag(weight.sum(1) + PRIOR * own * (1 - own)) - weight
        step = np.linalg.solve(curvature, slope)
        for _ in range(STEPS):
            better = _log_posterior(theta + step, games)
            if better >= value - ROUNDING * (1 + abs(value)):
                break
            step = step / 2
        theta, value = theta + step, better
    played = (games + games.T).sum(1) > 0
    return [round(float(strength), DIGITS) + 0.0 if judged else None for strength, judged in zip(theta, played)]


def from_ranks(ranks: Sequence[float | None]) -> list[float | None]:
    """Evenly spaced rewards in [0, 1]: the best (lowest) rank gets 1, the worst 0, equal ranks their mean.

    None stays None and takes no place; a single ranked completion gets None. Raises ValueError for a rank that is not
    finite.
    """
    known = [rank for rank in ranks if rank is not None]
    if not all(map(math.isfinite, known)):
        raise ValueError(f"ranks {list(ranks)}: expected finite numbers, or None")
    if len(known) < 2:
        return [None] * len(ranks)
    worse = {rank: sum((other > rank) + 0.5 * (other == rank) for other in known) - 0.5 for rank in known}
    return [None if rank is None else worse[rank] / (len(known) - 1) for rank in ranks]


def rewards(n: int, outcomes: Iterable[tuple[int, int, float]]) -> list[float | None]:
    """The Bradley-Terry strengths of n completions, in nats; None for one that was not compared. Raises as `wins` does."""
    return bradley_terry(wins(n, outcomes))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _log_posterior(theta: np.ndarray, games: np.ndarray) -> float:
    likelihood = -(games * np.logaddexp(0, theta[None, :] - theta[:, None])).sum()
    return float(likelihood - PRIOR / 2 * (np.logaddexp(0, -theta) + np.logaddexp(0, theta)).sum())
