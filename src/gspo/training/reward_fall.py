"""A sequential test for a fall of the mean reward that noise does not explain.

At each step, the mean of the last w steps is compared with the best mean of any w earlier steps, for w = `window` and its
doublings: short windows detect a deep fall at once, long ones a fall of sparse rewards. Repeated search for the best of many
windows finds large differences by chance alone, so only a fall of more than `ERRORS` standard errors counts. At this bound,
at most one in a hundred runs of 1,000 steps raises a false alarm while the policy stays the same; docs/stability.md has the
rates measured by `lab/speed/guard.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gspo.runs.log import is_number

ERRORS = 5.0  # standard errors that a fall must exceed
MOVED = 2.0  # standard errors that a reward must have moved by to be at more than a standstill
NEAR = 20  # number of step-to-step differences from which the noise between steps is estimated
ROUNDING = 1e-9  # relative tolerance for rewards without any noise
DEEP = 1.5  # distance from mean to floor in standard deviations of single rewards, if rewards may be negative


def other_queries(metrics: Mapping[str, Any], stage: float) -> bool:
    """Whether a stage or a refresh changed the queries here: rewards of other queries are not comparable."""
    changed = any(metrics.get(f"queries/{name}") for name in ("dropped", "returned", "new"))
    return changed or metrics.get("stage", stage) != stage


@dataclass(frozen=True)
class Fall:
    """A fall of the mean reward."""

    mean: float  # of the last `steps` steps
    best: float  # earlier mean over as many steps
    floor: float  # that both are counted from
    steps: int
    errors: float  # difference of the two means, in standard errors

    @property
    def share(self) -> float:
        """The remaining share of the best reward, counted from the floor."""
        return (self.mean - self.floor) / (self.best - self.floor) if self.best > self.floor else -math.inf

    def __str__(self) -> str:
        where = "" if not self.floor else f", counted from {self.floor:.3g}"
        left = f"{max(self.share, 0.0):.0%} of its best ({self.best:.3g}{where})"
        return f"the reward, {self.mean:.3g} over {self.steps} steps, is {left}, a fall of {self.errors:.1f} standard errors"


class RewardFall:
    """Receives the rewards of a run step by step, and reports a fall. window: steps of the shortest mean."""

    def __init__(self, window: int):
        self.window = window
        self._since = 0  # recent means start here: after a rewind, older steps do not describe the policy
        self._rows = np.zeros((0, 3))  # per step: mean reward, its variance, variance of single rewards
        self._lowest = math.inf

    def observe(self, metrics: Mapping[str, Any]) -> Fall | None:
        """Adds a step's `reward` and what is known of its noise. Returns the deepest fall that noise does not explain."""
        reward = metrics.get("reward")
        if not is_number(reward):
            return None
        error, spread, lowest = (
            value if is_number(value := metrics.get(name)) else other
            for name, other in (("reward_se", 0.0), ("reward_std_batch", 0.0), ("reward_min", reward))
        )
        between = np.diff([*self._rows[-NEAR:, 0], reward])
        variance = max(error**2, float((between**2).mean() / 2) if len(between) else 0.0)
        self._lowest = min(self._lowest, lowest)
        self._rows = np.vstack([self._rows, (reward, variance, spread**2)])
        return min(self._falls(), key=lambda fall: fall.share, default=None)

    def holds(self, border: float) -> bool:
        """Whether the last step's reward, within twice its noise, is still above the share `border` of the best: a single
        step shows a fall before the means do. After a rewind, False until a window is full.
        """
        total = len(self._rows)
        if total - self._since < self.window or total == self.window:
            return not self._since
        means = self._means(self.window)[:-1]
        best, _, spread = means[means[:, 0].argmax()]
        floor = self._floor(best, spread)
        noise = math.sqrt(self._rows[-2, 1])
        return bool(self._rows[-1, 0] + 2 * noise >= floor + border * (best - floor))

    def standstill(self, steps: int) -> tuple[float, float] | None:
        """The means of the first and the last `steps` steps, if noise explains their difference, else None."""
        if len(self._rows) < 2 * steps:
            return None
        means = self._means(steps)
        (first, a, _), (last, b, _) = means[0], means[-1]
        return None if abs(last - first) > MOVED * math.sqrt((a + b) / steps) else (float(first), float(last))

    def rewound(self) -> None:
        """The policy is an earlier one again: all rewards so far count only as the past."""
        self._since = len(self._rows)

    def _falls(self) -> list[Fall]:
        """For each window length, the fall from the best window to the last one, if noise does not explain it."""
        falls, total, steps = [], len(self._rows), self.window
        while self._since + steps <= total and 2 * steps <= total:
            means = self._means(steps)
            mean, variance, _ = means[-1]
            earlier = means[: total - 2 * steps + 1]
            best, best_variance, spread = earlier[earlier[:, 0].argmax()]
            noise = math.sqrt((variance + best_variance) / steps)
            if best - mean > max(ERRORS * noise, ROUNDING * abs(best)):
                errors = (best - mean) / noise if noise else math.inf
                falls.append(Fall(float(mean), float(best), self._floor(best, spread), steps, float(errors)))
            steps *= 2
        return falls

    def _means(self, steps: int) -> np.ndarray:
        """The means over each window of `steps` steps, [n, 3]."""
        sums = np.vstack([np.zeros(3), self._rows.cumsum(0)])
        means: np.ndarray = (sums[steps:] - sums[:-steps]) / steps
        return np.maximum(means, (-math.inf, 0.0, 0.0))

    def _floor(self, best: float, spread: float) -> float:
        """0 if no reward was negative; otherwise a typical lower end of single rewards."""
        return 0.0 if self._lowest >= 0 else float(max(self._lowest, best - DEEP * math.sqrt(spread)))

    def state_dict(self) -> dict[str, Any]:
        """All state that the next result depends on, in plain types."""
        return {"rows": self._rows.tolist(), "since": self._since, "lowest": self._lowest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self._rows = np.array(state["rows"], float).reshape(-1, 3)
        self._since, self._lowest = state["since"], state["lowest"]
