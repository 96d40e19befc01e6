"""What follows from a probe, by a rule that was written before any probe was run.

1. Fewer than 8 groups that teach, or a right gradient that cannot be told from noise at age 0: nothing is recommended.
2. Every candidate has a number: `update` of merit.py, the mean over the ages that the run trains at. The best is the one
   with the highest, among those whose updates something bounds.
3. As good as the best are those whose difference to it has an interval that includes 0, or is below 1 % of it. Where the
   run's own settings are as good, they are kept.
4. Else one that is as good as the best is recommended: one that needs no pass for likelihoods or experts before one that
   does, the run's own algorithm with another clip before another algorithm, and then the highest number.
5. A clip that numerics alone make take the gradient from more than 1 % of the tokens is never as good as another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gspo.objective.clip_range import NUMERICS
from gspo.probe.candidates import YOURS, Candidate
from gspo.probe.measure import Age, Measured
from gspo.probe.merit import Array, Merit, Resamples, Span, merit, over_ages, signal, span, weights_of

MARGIN = 0.01  # of the best: a difference below is none


class Standing(NamedTuple):
    """A candidate in numbers. update: over the ages that the run trains at. against: its difference to the run's own
    settings. direction, noise: at the last of these ages. largest: share of the squared norms that the largest group has,
    over all ages the most. low, high: shares of tokens clipped where A < 0 and where A > 0, over these ages. numerics: share
    that numerics alone clip.
    """

    name: str
    update: Span
    against: Span
    direction: Span
    noise: Span
    largest: float
    low: float
    high: float
    numerics: float


@dataclass
class Advice:
    """What is recommended: a candidate, None where nothing is; why, in sentences; and the lines that led to it."""

    candidate: Candidate | None
    reasons: list[str]
    lines: list[Standing]
    by_age: dict[str, dict[int, Span]] = field(default_factory=dict)  # update, by candidate and age

    @property
    def told(self) -> bool:
        """Whether the probe could tell anything."""
        return self.candidate is not None


def advise(found: Measured, updates: int, groups: float) -> Advice:
    """The advice. updates: ages that the run trains at are 0 to updates - 1. groups: in an update."""
    ages = [age for age in found.ages if age.products]
    if not ages:
        return Advice(
            None, [f"No gradients were measured: {found.groups} of {found.of} groups teach."], _bare(found, updates)
        )
    merits = _merits(ages, groups)
    used = [age.age for age in ages]
    values = {name: over_ages({age: merits[age][name].update for age in used}, updates) for name in _names(found)}
    last = max([age for age in used if age < updates], default=0)
    lines = []
    for candidate in found.candidates:
        name = candidate.name
        low, high, numerics = _clips(found, name, updates)
        lines.append(
            Standing(
                name, span(values[name]), span(values[name] - values[YOURS]), span(merits[last][name].direction),
                span(merits[last][name].noise), max(merits[age][name].largest for age in used), low, high, numerics,
            )
        )  # fmt: skip
    advice = Advice(None, [], lines, {name: {age: span(merits[age][name].update) for age in used} for name in values})
    if not _tells(ages[0]):
        advice.reasons.append(
            "The right gradient cannot be told from noise with so few groups: no direction can be compared. More --fresh or "
            "--groups would help."
        )
        return advice
    _choose(advice, found, values, lines)
    return advice


def _names(found: Measured) -> list[str]:
    return [candidate.name for candidate in found.candidates]


def _merits(ages: Sequence[Age], groups: float) -> dict[int, dict[str, Merit]]:
    merits: dict[int, dict[str, Merit]] = {}
    for age in ages:
        m, r = next(iter(age.products.values())).cross.shape
        resamples = Resamples.of(m, r, age.age)
        merits[age.age] = {name: merit(products, resamples, groups) for name, products in age.products.items()}
    return merits


def _tells(first: Age) -> bool:
    """Whether the right gradient can be told from noise."""
    truth = first.products[YOURS].truth
    return signal(truth, Resamples.of(len(truth), len(truth), first.age).fresh)[1]


def _clips(found: Measured, name: str, updates: int) -> tuple[float, float, float]:
    """Over the ages that the run trains at, and by numerics alone."""
    ages = [age.age for age in found.ages]
    shares = np.array([age.clipped[name] for age in found.ages])
    low, high = weights_of(ages, updates) @ shares
    return float(low), float(high), float(shares[0].mean())


def _bare(found: Measured, updates: int) -> list[Standing]:
    """Lines of what needs no gradient."""
    none = Span(math.nan, math.nan, math.nan)
    rows = [(name, *_clips(found, name, updates)) for name in _names(found)]
    return [Standing(name, none, none, none, none, math.nan, low, high, numerics) for name, low, high, numerics in rows]


def _choose(advice: Advice, found: Measured, values: Mapping[str, Array], lines: Sequence[Standing]) -> None:
    """Rules 2 to 5."""
    line = {each.name: each for each in lines}
    known = {candidate.name: candidate for candidate in found.candidates}
    offered = [c for c in found.candidates if c.offered and math.isfinite(line[c.name].update.value)]
    sound = [c for c in offered if line[c.name].numerics <= NUMERICS] or offered
    if not sound:
        advice.reasons.append("No candidate has a number: too few groups teach.")
        return
    best = max(sound, key=lambda c: line[c.name].update.value)
    top = line[best.name].update.value
    behind = {c.name: span(values[best.name] - values[c.name]) for c in sound}
    tied = [c for c in sound if c is best or behind[c.name].low <= 0 or behind[c.name].value < MARGIN * abs(top)]
    if known[YOURS] in tied:
        advice.candidate = known[YOURS]
        other = "" if best.name == YOURS else f"; the highest number has {best.name} ({_told(line[best.name].update)})"
        advice.reasons.append(
            f"Keep your settings: no candidate is better by more than noise. Theirs is {_told(line[YOURS].update)}{other}."
        )
    else:
        own = known[YOURS].algorithm.name
        chosen = min(tied, key=lambda c: (_passes(c), c.algorithm.name != own, -line[c.name].update.value))
        advice.candidate = chosen
        advice.reasons.append(
            f"{chosen.name} goes further the right way with each update than your settings: "
            f"{_told(line[chosen.name].update)} against {_told(line[YOURS].update)}, a difference of "
            f"{_told(line[chosen.name].against, '+.3f')}."
        )
        why = line[YOURS].numerics
        if why > NUMERICS:
            advice.reasons.append(
                f"With your settings numerics alone clip {why:.1%} of the tokens before any update ({NUMERICS:.0%} is "
                "tolerated): rounding would decide what is learned."
            )
    others = [c.name for c in tied if c is not advice.candidate]
    if others:
        advice.reasons.append(
            f"With {found.groups} groups the probe cannot tell it from {', '.join(others)}: their differences to the best "
            "are within noise."
        )


def _passes(candidate: Candidate) -> int:
    """Passes over a batch that it needs beside those of the updates: one gives likelihoods and experts."""
    return int(candidate.likelihoods == "recompute" or candidate.replay == "R2")


def _told(value: Span, form: str = ".3f") -> str:
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"
