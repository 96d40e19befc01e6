"""When it pays to share prompts on a device, by the times of both layouts: one number, as `learner/layout.py` has it.

`shared` is taken where padded rows would read more than that many times its tokens. Where a table of times cannot tell,
rows are padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Timed(NamedTuple):
    """A shape in both layouts. places: tokens that padded rows read. tokens: those of `shared`. padded, shared: seconds."""

    name: str
    places: int
    tokens: int
    padded: float
    shared: float

    @property
    def saved(self) -> float:
        """Places over tokens: what sharing spares."""
        return self.places / self.tokens

    def lost(self, gathering: float) -> float:
        """Time by that number over the shorter of the two times, less 1."""
        return (self.shared if self.saved > gathering else self.padded) / min(self.padded, self.shared) - 1


class Rule(NamedTuple):
    """The best number; None: always pad. lost: share of the time above that of the faster layout, mean over the shapes.
    worst: the shape that loses most by it, "" where none loses, and how much.
    """

    gathering: float | None
    lost: float
    worst: str
    most: float


def rule(shapes: Sequence[Timed]) -> Rule:
    """The number by which least time is lost. Of those that lose the same, the largest: so no shape is shared that spares
    less than one that was timed.
    """
    cuts = sorted({shape.saved for shape in shapes})
    tried = [math.inf, *(between(low, high) for low, high in zip([0.0, *cuts], cuts))]
    best = min(tried, key=lambda gathering: (_mean(shapes, gathering), -gathering))
    worst = max(shapes, key=lambda shape: shape.lost(best))
    most = worst.lost(best)
    return Rule(None if best == math.inf else best, _mean(shapes, best), worst.name if most else "", most)


def between(low: float, high: float) -> float:
    """A round number from low up to what is less than high, in the middle by ratio; near high where low is 0."""
    middle = math.sqrt(low * high) if low else high
    for digits in range(2, 9):
        if (number := (math.ceil(middle * 10**digits) - 1) / 10**digits) >= low:
            return number
    return low


def _mean(shapes: Sequence[Timed], gathering: float) -> float:
    return sum(shape.lost(gathering) for shape in shapes) / len(shapes)


def said(found: Rule) -> str:
    """What to set, and where."""
    if found.gathering is None:
        return '`shared` paid nowhere: leave `GATHERING_ON_GPU = None` in src/gspo/learner/layout.py, so that "auto" pads.'
    text = f'Set `GATHERING_ON_GPU = {found.gathering:g}` in src/gspo/learner/layout.py. By it "auto" takes '
    text += f"{found.lost:.1%} more time than the faster layout of each shape, on average"
    return text + (f", and {found.most:.0%} at worst ({found.worst})." if found.worst else ".")
