"""95 % intervals: of a mean, of an accuracy, of a mean of paired differences.

Those of means are Student's t intervals: with few values, a bootstrap is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

EQUAL = 1e-9  # relative to the largest value: smaller differences are rounding

Z95 = 1.959964  # standard normal quantile of a two-sided 95 % interval
# Student's t quantiles for 1, 2, ... degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Interval:
    """A mean over n values and its 95 % interval; the ends are NaN if they cannot be estimated, as for n = 1."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def resolved(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def student(freedom: int) -> float:
    """Student's t quantile of a two-sided 95 % interval; above 30 degrees of freedom a series, accurate to 1e-4."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; NaN for fewer than two values."""
    n = len(values)
    mean = sum(values) / n if n else math.nan
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n) if n > 1 else math.nan


def accuracy_interval(shares: Sequence[float]) -> Interval:
    """Mean of the prompts' shares of correct completions, and its 95 % interval; NaN without prompts.

    Wilson's interval, where n is the number of independent draws that have the observed variance between prompts:
    completions of one prompt are not independent. That variance is itself uncertain, so Student's t replaces the normal
    quantile.
    """
    n = len(shares)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    p = sum(shares) / n
    variance = standard_error(shares) ** 2 if n > 1 else 0.0
    return Interval(p, *wilson(p, variance, n, student(max(1, n - 1))), n)


def wilson(p: float, variance: float, draws: float, t: float) -> tuple[float, float]:
    """Wilson's interval of a share p that is estimated with a variance, for the quantile t. `draws`: independent draws to
    assume if the variance is 0, or if p is 0 or 1.
    """
    if variance > 0 and 0 < p < 1:
        draws = p * (1 - p) / variance
    draws = max(1.0, draws)
    middle = (p + t**2 / (2 * draws)) / (1 + t**2 / draws)
    half = t / (1 + t**2 / draws) * math.sqrt(p * (1 - p) / draws + t**2 / (4 * draws**2))
    return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))


def newcombe(first: Sequence[float], last: Sequence[float]) -> tuple[float, float]:
    """95 % interval of last - first, two shares that are each given as (share, low, high), by their own 95 % intervals.

    Newcombe's method 10 (Statistics in Medicine 17, 1998, p. 873), for independent shares. Of shares on the same prompts,
    which mostly rise and fall together, it is too wide: on the safe side.
    """
    (p, low, high), (q, q_low, q_high) = first, last
    return q - p - math.hypot(q - q_low, high - p), q - p + math.hypot(q_high - q, p - low)


def interval(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """Mean and Student's t interval, clipped to the natural bounds of the values."""
    x = np.asarray(values, float)
    x = x[np.isfinite(x)]
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else math.nan, math.nan, math.nan, len(x))
    half = student(len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    low, high = max(x.mean() - half, bounds[0]), min(x.mean() + half, bounds[1])
    return Interval(float(x.mean()), float(low), float(high), len(x))


def no_narrower(value: Interval, floor: Interval) -> Interval:
    """The interval widened to contain another one; as it is if either has no ends."""
    if math.isnan(value.low + floor.low):
        return value
    return Interval(value.mean, min(value.low, floor.low), max(value.high, floor.high), value.n)


def over_seeds(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """`interval` of a measured number of each seed, or of paired differences. If all are equal, as may happen with few
    held-out prompts or at the highest reward, the noise is unknown rather than zero, so the mean gets no interval.
    """
    found = interval(values, bounds)
    return Interval(found.mean, math.nan, math.nan, found.n) if noiseless(values) else found


def noiseless(values: Sequence[float] | np.ndarray) -> bool:
    """Whether the finite values are all equal, up to rounding."""
    x = np.asarray(values, float)
    x = x[np.isfinite(x)]
    return bool(len(x) and np.ptp(x) <= EQUAL * np.abs(x).max())


def paired(a: dict[int, float], b: dict[int, float]) -> list[float]:
    """a - b for the seeds that both have."""
    return [a[seed] - b[seed] for seed in sorted(a) if seed in b and math.isfinite(a[seed] - b[seed])]
