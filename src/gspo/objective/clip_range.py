"""A clip range that sets itself: it holds the share of clipped tokens near a target.

The right range depends on the completion length, the learning rate and the number of updates a batch, over orders of
magnitude; the share of tokens that the paper clips, about 0.15, does not. So the share is held and the range follows: it
is a quantile of the ratios that were seen, carried forward by their trend. Only tokens with an advantage count. The others
are never clipped: were they counted, sparse rewards would leave no range at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gspo.objective.algorithms import WIDEST

DECADES = (-9, 2)  # of log10 of an excess; what lies below or above counts in the outermost bins
BINS = 64  # a decade
WINDOW = 4  # steps whose ratios are pooled
TREND = 6  # steps that the trend is taken from
NOISE_WINDOW = 8  # the same for numerics, of which a step shows less
STRIDE = 2.0  # most that the range changes by in a step, as a factor
NUMERICS = 0.01  # numerics alone may clip this share: below, rounding would decide, and always against the same completions


class AutoClip:
    """Chooses e_low and e_high = shape * e_low so that `target` of the tokens with an advantage are clipped.

    The range begins at e_low, e_high, holds through a step, and is set anew by `settle` after it. The first `settle` takes
    the quantile as it is, later ones move by at most a factor of 2. at_floor: whether the noise floor holds it up.
    """

    def __init__(self, e_low: float, e_high: float, target: float):
        self.e_low, self.shape, self.target = e_low, e_high / e_low, target
        self.at_floor = False
        self._now = torch.zeros((DECADES[1] - DECADES[0]) * BINS, dtype=torch.float64)
        self._tokens = 0.0
        self._past: deque[tuple[Tensor, float]] = deque(maxlen=TREND)
        self._noise: deque[tuple[Tensor, float]] = deque(maxlen=NOISE_WINDOW)

    @property
    def e_high(self) -> float:
        """The right end."""
        return self.shape * self.e_low

    def see(self, ratio: Tensor, A: Tensor) -> None:
        """Takes in an update's ratio and advantage of each of its tokens, [N]."""
        excess = torch.where(A > 0, (ratio - 1) / self.shape, 1 - ratio)[A != 0]  # clipped where it is above e_low
        self._now += histogram(excess)
        self._tokens += len(excess)

    def update_range(self, noise: Tensor) -> None:
        """Ends a step: sets the range from the ratios of the last steps. noise: ratios that nothing but numerics moved."""
        if not self._tokens:
            return
        first = not self._past
        self._past.append((self._now, self._tokens))
        self._now, self._tokens = torch.zeros_like(self._now), 0.0
        excess = self._expected()
        if not first:
            excess = min(max(excess, self.e_low / STRIDE), self.e_low * STRIDE)
        # Each of these could have had either sign of A.
        either = torch.cat([(noise - 1) / self.shape, 1 - noise])
        self._noise.append((histogram(either), float(len(either))))
        floor = max(quantile(self._noise, NUMERICS), 10.0 ** DECADES[0])
        self.at_floor = excess <= floor
        self.e_low = min(max(excess, floor), WIDEST)

    def _expected(self) -> float:
        """The excess that `target` of the next step's tokens should lie above: the quantile of the last steps, each carried
        forward by the trend. While a policy learns fast its ratios grow from step to step, and a range that only looked
        back would clip far more.
        """
        growth = trend([(quantile([each], self.target), each[1]) for each in self._past])
        last = list(self._past)[-WINDOW:]
        ages = range(len(last), 0, -1)
        return quantile([(moved(counts, growth * age), total) for (counts, total), age in zip(last, ages)], self.target)

    def state_dict(self) -> dict[str, Any]:
        """All that the next range depends on."""
        return {"e_low": self.e_low, "at_floor": self.at_floor, "past": list(self._past), "noise": list(self._noise)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.e_low, self.at_floor = state["e_low"], state["at_floor"]
        self._past = deque(state["past"], maxlen=TREND)
        self._noise = deque(state["noise"], maxlen=NOISE_WINDOW)


def histogram(excess: Tensor) -> Tensor:
    """Counts of the positive values by their logarithm, [bins]."""
    excess = excess.double()
    bins = ((excess[excess > 0].log10() - DECADES[0]) * BINS).long()
    count = (DECADES[1] - DECADES[0]) * BINS
    return torch.bincount(bins.clamp(0, count - 1), minlength=count).double()


def moved(counts: Tensor, decades: float) -> Tensor:
    """The histogram [bins] of the same values times 10^decades; what leaves it stays in the outermost bins."""
    by = min(max(decades * BINS, -len(counts) + 1.0), len(counts) - 1.0)
    at = torch.arange(len(counts), dtype=torch.float64) + by
    low = at.floor().long()
    part = at - low  # shared out between two bins
    out = torch.zeros_like(counts)
    out.index_add_(0, low.clamp(0, len(counts) - 1), counts * (1 - part))
    return out.index_add_(0, (low + 1).clamp(0, len(counts) - 1), counts * part)


def trend(values: Sequence[tuple[float, float]]) -> float:
    """Growth a step of the logarithm to the base of 10, by least squares. values: (value, weight) of each step; 0 where
    fewer than three are above 0.
    """
    rows = [(step, math.log10(value), weight) for step, (value, weight) in enumerate(values) if value > 0]
    if len(rows) < 3:
        return 0.0
    x, y, w = torch.tensor(rows, dtype=torch.float64).T
    x, y = x - (w * x).sum() / w.sum(), y - (w * y).sum() / w.sum()
    return float((w * x * y).sum() / (w * x * x).sum())


def quantile(histograms: Iterable[tuple[Tensor, float]], share: float) -> float:
    """The excess that `share` of all lie above, of pairs (histogram, how many in all); 0 where fewer have any."""
    counts = torch.stack([counts for counts, _ in histograms]).sum(0)
    above = counts.flip(0).cumsum(0).flip(0)  # in this bin and the ones above
    want = share * sum(total for _, total in histograms)
    if above[0] < want:
        return 0.0
    i = int((above >= want).nonzero()[-1])
    inside = float((above[i] - want) / counts[i]) if counts[i] else 0.0  # from the bin's lower end
    return 10.0 ** (DECADES[0] + (i + inside) / BINS)
