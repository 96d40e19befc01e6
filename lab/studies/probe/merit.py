"""How good an update is, from the gradients of groups: its direction, its noise, and intervals by resampling groups.

g_i is the gradient that an objective takes from group i of a batch that is some updates old, i = 1..M. r_j is the gradient
on policy: of the same terms with ratio 1, on group j of fresh completions, j = 1..R. All that is needed are their products.
An update takes the mean of B groups:

    direction   cos(E g, E r)           1 where nothing but noise was lost
    noise       B |E g|^2 / tr Cov g    the signal to noise of an update
    update      E cos(mean of B g, E r) both together: how far an update goes the right way

Squares of means are taken over pairs of different groups, so that noise does not count as signal. `update` is a mean over
drawn mini-batches: each counts alike, however large its gradient is, for the optimizer scales and clips it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
RESAMPLES = 200
DRAWN = 96  # mini-batches of each resample
SIGNAL = 2.0  # standard errors of |E r|^2 that must lie between it and 0


class Span(NamedTuple):
    """An estimate and its 95 % interval, by resampling groups."""

    value: float
    low: float
    high: float

    @property
    def resolved(self) -> bool:
        """Whether it leaves 0 out."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Products:
    """own [M, M]: g_i . g_k. cross [M, R]: g_i . r_j. truth [R, R]: r_j . r_k."""

    own: Array
    cross: Array
    truth: Array


@dataclass(frozen=True)
class Resamples:
    """How often each group stands in a resample; in the first row each stands once. measured [n, M], fresh [n, R]. batches
    [n, DRAWN, B]: mini-batches of different groups of each; None where a mini-batch has more than half of all.
    """

    measured: Array
    fresh: Array
    batches: NDArray[np.int64] | None

    @staticmethod
    def of(measured: int, fresh: int, seed: int, groups: float, count: int = RESAMPLES) -> Resamples:
        """`count` resamples, for updates of so many groups. The measured groups are drawn alike for every seed, so that ages
        can be paired.
        """
        u, size = _counts(measured, 0, count), max(1, round(groups))
        batches = None
        if 2 * size <= measured:
            keys = np.random.default_rng([2, measured]).gumbel(size=(len(u), DRAWN, measured))
            with np.errstate(divide="ignore"):
                keys += np.log(u)[:, None]  # the largest keys are a draw without replacement, by counts
            batches = np.argpartition(-keys, size - 1, axis=2)[:, :, :size]
        return Resamples(u, _counts(fresh, 1 + seed, count), batches)


def _counts(groups: int, seed: int, count: int) -> Array:
    rng = np.random.default_rng([seed, groups])
    drawn = rng.multinomial(groups, np.full(groups, 1 / groups), count)
    return np.vstack([np.ones(groups), drawn]).astype(float)


def mean_square(gram: Array, counts: Array) -> Array:
    """|E x|^2 of each resample [n], over pairs of different groups. nan where a resample has but one."""
    total = ((counts @ gram) * counts).sum(1)
    same = (counts**2) @ np.diag(gram)
    pairs = counts.sum(1) ** 2 - (counts**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(pairs > 0, (total - same) / pairs, np.nan)


def signal(truth: Array, counts: Array) -> tuple[Array, bool]:
    """|E r| of each resample [n], nan where it cannot be told from 0; and whether it can be told from 0 at all."""
    square = mean_square(truth, counts)
    error = float(np.nanstd(square[1:]))
    with np.errstate(invalid="ignore"):
        return np.sqrt(np.where(square > 0, square, np.nan)), bool(square[0] > SIGNAL * error)


class Merit(NamedTuple):
    """Of one objective at one age, by resample [n]; the first is the estimate. largest: the share of the squared norms that
    the largest group has, a number: 1/M where all are alike.
    """

    direction: Array
    noise: Array
    update: Array
    largest: float


def merit(products: Products, resamples: Resamples, groups: float) -> Merit:
    """`direction`, `noise` and `update` of an update of so many groups."""
    u, v = resamples.measured, resamples.fresh
    dot = ((u @ products.cross) * v).sum(1) / (u.sum(1) * v.sum(1))
    truth, _ = signal(products.truth, v)
    mine = mean_square(products.own, u)
    squares = np.diag(products.own)
    spread = np.maximum(u @ squares / u.sum(1) - mine, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        direction = np.clip(dot / (truth * np.sqrt(np.where(mine > 0, mine, np.nan))), -1, 1)
        noise = groups * np.maximum(mine, 0.0) / spread
        if resamples.batches is None:  # so many groups that their mean is nearly normal
            update = dot / (truth * np.sqrt(np.maximum(mine, 0.0) + spread / groups))
        else:
            update = _drawn(products, resamples) / truth
        update = np.clip(update, -1, 1)
    total = float(squares.sum())
    return Merit(direction, noise, update, float(squares.max()) / total if total else math.nan)


def _drawn(products: Products, resamples: Resamples) -> Array:
    """The mean over a resample's mini-batches of (mean g / |mean g|) . mean r, [n]; 0 of one without a gradient."""
    assert resamples.batches is not None
    towards = resamples.fresh @ products.cross.T / resamples.fresh.sum(1, keepdims=True)  # [n, M]
    found = np.empty(len(towards))
    for number, batches in enumerate(resamples.batches):
        size = batches.shape[1]
        norm = np.sqrt(np.maximum(products.own[batches[:, :, None], batches[:, None, :]].sum((1, 2)), 0.0)) / size
        dot = towards[number][batches].mean(1)
        found[number] = np.divide(dot, norm, out=np.zeros_like(dot), where=norm > 0).mean()
    return found


def span(values: Array) -> Span:
    """The estimate and its interval, of resamples [n] whose first is the estimate. nan where too few are numbers."""
    rest = values[1:][np.isfinite(values[1:])]
    if len(rest) < 0.9 * (len(values) - 1) or not math.isfinite(values[0]):
        return Span(math.nan, math.nan, math.nan)
    low, high = np.quantile(rest, [0.025, 0.975])
    return Span(float(values[0]), float(low), float(high))


def over_ages(by_age: Mapping[int, Array], updates: int) -> Array:
    """The mean over the ages 0 to `updates` - 1, of values [n] at some of them; linear in between."""
    ages = sorted(by_age)
    values = np.stack([by_age[age] for age in ages])
    return weights_of(ages, updates) @ values


def weights_of(ages: Sequence[int], updates: int) -> Array:
    """What each of these ages counts in a mean over 0 to `updates` - 1, linear in between. They begin with 0."""
    every = np.arange(updates)
    return np.stack([np.interp(every, ages, np.eye(len(ages))[i]) for i in range(len(ages))]).mean(1)
