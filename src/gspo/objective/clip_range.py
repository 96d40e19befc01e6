"""An adaptive clip range that holds the share of clipped tokens near a target.

The right range varies over orders of magnitude with completion length, learning rate and updates per batch; the share of
tokens that the paper clips, about 0.15, does not. So the share is held and the range follows: it is a quantile of the
observed ratios, extrapolated by their trend. Only tokens with a nonzero advantage count. The others are never clipped, and
with sparse rewards counting them would shrink the range to nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gspo.objective.algorithms import WIDEST

DECADES = (-9, 2)  # range of log10(excess); values outside count in the outermost bins
BINS = 64  # per decade
WINDOW = 4  # steps whose ratios are pooled
TREND = 6  # steps in the trend fit
NOISE_WINDOW = 8  # steps of numerical noise that are pooled; a step has fewer samples of it
STRIDE = 2.0  # maximum change of the range per step, as a factor
# Share of tokens that numerics alone may clip. In a narrower range rounding would decide, and always against the same
# completions.
NUMERICS = 0.01
# Where "auto" arrives: START * length^POWER, measured on SmolLM2-135M at 16 to 230 tokens with 4 updates a batch; the 95 %
# interval of the power is [-1.06, -.60] (docs/evidence.md). With 16 updates a batch it ended about five times as wide.
# Longer completions were not measured, so the range narrows no further than at LONGEST: to .0006, near the paper's 3e-4.
START, POWER, LONGEST = 0.058, -0.83, 256.0


def initial_range(length: float) -> float:
    """The lower clip range to begin with for ratios over `length` tokens on average."""
    return START * min(max(length, 1.0), LONGEST) ** POWER


def range_at(length: Tensor, e_low: float, e_high: float, own: float) -> tuple[Any, Any]:
    """The clip range for ratios over `length` tokens where (e_low, e_high) is meant for `own` tokens: log(1 - e_low) and
    log(1 + e_high), times sqrt(own / length).

    FSPO (arXiv 2509.09177v3) clips S_i = sum_t log w_it = |y_i| log s_i to [-c_low sqrt(|y_i|), c_high sqrt(|y_i|)]; its
    first version also moved this band by a KL term. This is the band of v3 around 0, with c_low = -log(1 - e_low) sqrt(own)
    and c_high = log(1 + e_high) sqrt(own). The weight stays s_i, where FSPO's is exp(S_i).

    Args:
        length: In tokens, of any shape, floating-point.
    """
    k = (own / length) ** 0.5
    return 1 - (1 - e_low) ** k, (1 + e_high) ** k - 1


class AutoClip:
    """Chooses e_low, and e_high = shape * e_low, so that `target` of the tokens with a nonzero advantage are clipped.

    The range starts at (e_low, e_high), or at what fits the length of the first completions (`begin`). It is constant within
    a step, and is set by `update_range` after it. The first update takes the quantile as is, later ones change the range by
    at most a factor of 2.
    """

    def __init__(self, e_low: float, e_high: float, target: float):
        self.e_low, self.shape, self.target = e_low, e_high / e_low, target
        self.at_floor = False  # whether the noise floor determines the range
        self._now = torch.zeros((DECADES[1] - DECADES[0]) * BINS, dtype=torch.float64)
        self._tokens = 0.0
        self._past: deque[tuple[Tensor, float]] = deque(maxlen=TREND)
        self._noise: deque[tuple[Tensor, float]] = deque(maxlen=NOISE_WINDOW)

    @property
    def e_high(self) -> float:
        """The upper clip range."""
        return self.shape * self.e_low

    def begin(self, length: float) -> None:
        """Sets the range for ratios over `length` tokens on average, unless it follows from observed ratios already."""
        if not self._past:
            self.e_low = initial_range(length)

    def observe(self, ratio: Tensor, A: Tensor) -> None:
        """Adds an update's ratios and advantages, each [N] per token."""
        excess = torch.where(A > 0, (ratio - 1) / self.shape, 1 - ratio)[A != 0]  # clipped where above e_low
        self._now += histogram(excess)
        self._tokens += len(excess)

    def update_range(self, noise: Tensor) -> None:
        """Ends a step: sets the range from the ratios of recent steps. noise: Ratios that differ from 1 by numerics only."""
        if not self._tokens:
            return
        first = not self._past
        self._past.append((self._now, self._tokens))
        self._now, self._tokens = torch.zeros_like(self._now), 0.0
        excess = self._expected()
        if not first:
            excess = min(max(excess, self.e_low / STRIDE), self.e_low * STRIDE)
        # A may have either sign for each of these ratios.
        either = torch.cat([(noise - 1) / self.shape, 1 - noise])
        self._noise.append((histogram(either), float(len(either))))
        floor = max(quantile(self._noise, NUMERICS), 10.0 ** DECADES[0])
        self.at_floor = excess <= floor
        self.e_low = min(max(excess, floor), WIDEST)

    def _expected(self) -> float:
        """The excess that `target` of the next step's tokens should exceed: the quantile of recent steps, each extrapolated
        by the trend. While a policy learns fast, its ratios grow from step to step, and a range based on the past only would
        clip far more.
        """
        growth = trend([(quantile([each], self.target), each[1]) for each in self._past])
        last = list(self._past)[-WINDOW:]
        ages = range(len(last), 0, -1)
        return quantile([(moved(counts, growth * age), total) for (counts, total), age in zip(last, ages)], self.target)

    def state_dict(self) -> dict[str, Any]:
        """All state that determines the next range."""
        return {"e_low": self.e_low, "at_floor": self.at_floor, "past": list(self._past), "noise": list(self._noise)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        self.e_low, self.at_floor = state["e_low"], state["at_floor"]
        self._past = deque(state["past"], maxlen=TREND)
        self._noise = deque(state["noise"], maxlen=NOISE_WINDOW)


def histogram(excess: Tensor) -> Tensor:
    """Histogram of the positive values on a log10 scale, [bins]."""
    excess = excess.double()
    bins = ((excess[excess > 0].log10() - DECADES[0]) * BINS).long()
    count = (DECADES[1] - DECADES[0]) * BINS
    return torch.bincount(bins.clamp(0, count - 1), minlength=count).double()


def moved(counts: Tensor, decades: float) -> Tensor:
    """The histogram [bins] of the same values times 10^decades; values shifted out of range stay in the outermost bins."""
    by = min(max(decades * BINS, -len(counts) + 1.0), len(counts) - 1.0)
    at = torch.arange(len(counts), dtype=torch.float64) + by
    low = at.floor().long()
    part = at - low  # split between two adjacent bins
    out = torch.zeros_like(counts)
    out.index_add_(0, low.clamp(0, len(counts) - 1), counts * (1 - part))
    return out.index_add_(0, (low + 1).clamp(0, len(counts) - 1), counts * part)


def trend(values: Sequence[tuple[float, float]]) -> float:
    """Growth of log10(value) per step, by weighted least squares; 0 if fewer than three values are positive. values: (value,
    weight) of each step.
    """
    rows = [(step, math.log10(value), weight) for step, (value, weight) in enumerate(values) if value > 0]
    if len(rows) < 3:
        return 0.0
    x, y, w = torch.tensor(rows, dtype=torch.float64).T
    x, y = x - (w * x).sum() / w.sum(), y - (w * y).sum() / w.sum()
    return float((w * x * y).sum() / (w * x * x).sum())


def quantile(histograms: Iterable[tuple[Tensor, float]], share: float) -> float:
    """The excess that `share` of all values exceed, over pooled (histogram, total count) pairs; 0 if fewer are positive."""
    counts = torch.stack([counts for counts, _ in histograms]).sum(0)
    above = counts.flip(0).cumsum(0).flip(0)  # count in this bin and above
    want = share * sum(total for _, total in histograms)
    if above[0] < want:
        return 0.0
    i = int((above >= want).nonzero()[-1])
    inside = float((above[i] - want) / counts[i]) if counts[i] else 0.0  # fraction of the bin, from its lower edge
    return 10.0 ** (DECADES[0] + (i + inside) / BINS)
