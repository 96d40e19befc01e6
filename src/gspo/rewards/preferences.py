"""Preferences within a group -> rewards: who beat whom, or who came first, as one number for each completion. All in
float64.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

METHODS = ("bradley_terry", "win_rate")
STEPS = 100  # at most, of Newton's method, which takes about ten
CLOSE = 1e-12  # gradient at which it has converged, as a share of the games
ROUNDING = 1e-12  # of the objective, relative: a step that lowers it by less may be a step up
DIGITS = 8  # of a strength behind the point: further ones depend on the order of completions and on the processor


def wins(n: int, outcomes: Iterable[tuple[int, int, float]]) -> np.ndarray:
    """W [n, n]: games that i won against j, of outcomes (i, j, o): o = 1 where i was better, 0 where j was, 0.5 for a tie.

    Cycles and repeated games are allowed. Raises ValueError for a completion that there is none of, against itself, or
    another o.
    """
    games = np.zeros((n, n))
    for i, j, outcome in outcomes:
        if not (0 <= i < n and 0 <= j < n) or i == j:
            raise ValueError(
                f"outcome ({i}, {j}, {outcome}): expected two different completions, numbered from 0 to {n - 1}"
            )
        if not 0 <= outcome <= 1:  # nan too
            raise ValueError(f"outcome ({i}, {j}, {outcome}): expected 1 (the first is better), 0.5 (a tie) or 0")
        games[i, j] += outcome
        games[j, i] += 1 - outcome
    return games


def bradley_terry(games: np.ndarray, prior: float = 1.0) -> list[float | None]:
    """Strengths theta in nats, where P(i beats j) = sigmoid(theta_i - theta_j); None for a completion without any game.

    games: as `wins` returns. prior: ties that each completion is taken to have had with one of strength 0, so that a
    completion that won every game has a finite strength. theta is the maximum of

        sum_ij W_ij log sigmoid(theta_i - theta_j) + prior/2 sum_i [log sigmoid(theta_i) + log sigmoid(-theta_i)],

    which is strictly concave; found by Newton's method with step halving, and rounded: completions with the same games have
    equal strengths.
    """
    if not (math.isfinite(prior) and prior > 0):
        raise ValueError(f"prior = {prior}: must be above 0, or a completion that always won would have no finite strength")
    theta = np.zeros(len(games))
    value = _log_posterior(theta, games, prior)
    for _ in range(STEPS):
        p = _sigmoid(theta[:, None] - theta[None, :])
        own = _sigmoid(theta)
        slope = (games * (1 - p)).sum(1) - (games.T * p).sum(1) + prior * (0.5 - own)
        if np.abs(slope).max(initial=0.0) < CLOSE * (prior + games.sum()):
            break
        weight = (games + games.T) * p * (1 - p)
        curvature = np.diag(weight.sum(1) + prior * own * (1 - own)) - weight
        step = np.linalg.solve(curvature, slope)
        for _ in range(STEPS):
            better = _log_posterior(theta + step, games, prior)
            if better >= value - ROUNDING * (1 + abs(value)):
                break
            step = step / 2
        theta, value = theta + step, better
    played = (games + games.T).sum(1) > 0
    return [round(float(strength), DIGITS) + 0.0 if has_played else None for strength, has_played in zip(theta, played)]


def win_rate(games: np.ndarray) -> list[float | None]:
    """The share of its games that each completion won, a tie counting half (Borda); None for a completion without any."""
    won, lost = games.sum(1), games.sum(0)
    return [float(w / (w + l)) if w + l else None for w, l in zip(won, lost)]


def from_ranks(ranks: Sequence[float | None]) -> list[float | None]:
    """Evenly spaced rewards in [0, 1]: the best (lowest) rank gets 1, the worst 0, equal ranks their mean.

    None stays None and takes no place; alone, a completion gets None. Raises ValueError for a rank that is no finite number.
    """
    known_ranks = [rank for rank in ranks if rank is not None]
    if not all(math.isfinite(rank) for rank in known_ranks):
        raise ValueError(f"ranks {list(ranks)}: expected finite numbers, or None")
    if len(known_ranks) < 2:
        return [None] * len(ranks)

    def worse(rank: float) -> float:
        return sum((other > rank) + 0.5 * (other == rank) for other in known_ranks) - 0.5

    return [None if rank is None else worse(rank) / (len(known_ranks) - 1) for rank in ranks]


def rewards(n: int, outcomes: Iterable[tuple[int, int, float]], method: str = "bradley_terry") -> list[float | None]:
    """The rewards of n completions, by outcomes as in `wins`; None for a completion that was not compared.

    method: "bradley_terry" (strengths, in nats) or "win_rate" (in [0, 1]). Raises ValueError for another.
    """
    if method not in METHODS:
        raise ValueError(f"method = {method!r}: allowed are {', '.join(METHODS)}")
    games = wins(n, outcomes)
    return bradley_terry(games) if method == "bradley_terry" else win_rate(games)


class Preferred:
    """A reward function of comparisons: `compare(prompt, a, b, **row) -> float | None`, plain or async, says 1 where
    completion a is better, 0 where b is, 0.5 for a tie, and None for no opinion.

    Each two different completions to a prompt are compared once; equal ones get equal rewards. `method` is that of
    `rewards`.
    """

    by_group = True

    def __init__(self, compare: Callable[..., Any], method: str = "bradley_terry") -> None:
        rewards(0, [], method)  # refuses an unknown one
        self.compare, self.method = compare, method
        self.__name__ = getattr(compare, "__name__", type(compare).__name__).strip("<>")

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float | None]:
        """The rewards of all completions to one prompt."""
        row = {name: values[0] for name, values in columns.items()}
        distinct = sorted(set(completions))
        pairs = list(combinations(range(len(distinct)), 2))
        opinions = await asyncio.gather(*(self._ask(prompts[0], distinct[i], distinct[j], row) for i, j in pairs))
        outcomes = [(i, j, outcome) for (i, j), outcome in zip(pairs, opinions) if outcome is not None]
        values = rewards(len(distinct), outcomes, self.method)
        return [values[distinct.index(completion)] for completion in completions]

    async def _ask(self, prompt: Any, a: str, b: str, row: dict[str, Any]) -> float | None:
        opinion = self.compare(prompt, a, b, **row)
        return await opinion if inspect.isawaitable(opinion) else opinion


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _log_posterior(theta: np.ndarray, games: np.ndarray, prior: float) -> float:
    likelihood = -(games * np.logaddexp(0, theta[None, :] - theta[:, None])).sum()
    return float(likelihood - prior / 2 * (np.logaddexp(0, -theta) + np.logaddexp(0, theta)).sum())
