"""95 % intervals: Student's t quantile, and the interval of an accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959964  # standard normal quantile of a two-sided 95 % interval
# Student's t quantiles for 1, 2, ... degrees of freedom.
T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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


def accuracy_interval(shares: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the prompts' shares of correct completions, and its 95 % interval. All three are NaN without prompts.

    Wilson's interval, where n is the number of independent draws that have the observed variance between prompts:
    completions of one prompt are not independent. That variance is itself uncertain, so Student's t replaces the normal
    quantile.
    """
    n = len(shares)
    if n == 0:
        return math.nan, math.nan, math.nan
    p = sum(shares) / n
    variance = standard_error(shares) ** 2 if n > 1 else 0.0
    return p, *wilson(p, variance, n, student(max(1, n - 1)))


def wilson(p: float, variance: float, draws: float, t: float) -> tuple[float, float]:
    """Wilson's interval of a share.

    Args:
        p: The estimated share.
        variance: Variance of the estimate.
        draws: Number of independent draws to assume if the variance is 0, or if p is 0 or 1.
        t: Quantile.
    """
    if variance > 0 and 0 < p < 1:
        draws = p * (1 - p) / variance
    draws = max(1.0, draws)
    middle = (p + t**2 / (2 * draws)) / (1 + t**2 / draws)
    half = t / (1 + t**2 / draws) * math.sqrt(p * (1 - p) / draws + t**2 / (4 * draws**2))
    return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))
