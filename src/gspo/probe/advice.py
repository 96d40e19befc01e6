"""What follows from a probe, by a rule that stands here.

1. Nothing is recommended where fewer than 8 groups teach, where the ages that the run trains at were not all passed, or
   where a right gradient of theirs cannot be told from noise.
2. Every candidate has a number: `update` of merit.py, the mean over the ages that the run trains at. The best is the one
   with the highest, among those whose updates something bounds and whose clip numerics alone do not decide: it may take the
   gradient from 1 % of the tokens, and a clip of single tokens needs recomputed likelihoods beside a sampler that differs
   by a KL above 1e-5. (A range that sets itself stays at 1 % by its own rule.)
3. The run's own settings are kept, unless a candidate is better than they are beyond noise: by a bound for all candidates at
   once, since the best of many looks better than it is.
4. Of those that are better, and as good as the best (a difference whose interval includes 0, or below 1 % of it), one is
   recommended: one that needs no pass for likelihoods or experts before one that does, the run's own algorithm with another
   clip before another algorithm, and then the highest number.
5. Own settings that numerics decide, or that nothing bounds, are told so; what is then recommended need not be better.
6. Nothing is recommended beyond 4 updates a batch, nor where the policy moves by more than 2e-4 nats a token before the
   last of them; the reasons say what single updates do. Recommendations by rules 1 to 5 did not end within .02 of the best
   of a sweep in 2 of 2 settings with 8 and 16 updates, and in one with 4 in which it moved by 4e-4 (studies/probe.py,
   docs/probe.md). Nor where a batch is read in several epochs: what is measured no update has seen, and completions that
   one has seen move further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gspo.objective.clip_range import NUMERICS
from gspo.objective.mismatch import SINGLE, tolerated
from gspo.probe.candidates import YOURS, Candidate
from gspo.probe.measure import Age, Measured
from gspo.probe.merit import Array, Resamples, Span, merit, over_ages, signal, span, weights_of

MARGIN = 0.01  # of the best: a difference below is none
MOST = 4  # updates a batch up to which single updates foretold how runs end
FAR = 2e-4  # KL in nats a token, likewise: from the policy that sampled to the one before the last update of its batch


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


def advise(found: Measured, updates: int, groups: float, epochs: int = 1) -> Advice:
    """The advice. updates: ages that the run trains at are 0 to updates - 1. groups: in an update. epochs: of a batch."""
    ages = [age for age in found.ages if age.products]
    if not ages:
        return Advice(
            None, [f"No gradients were measured: {found.groups} of {found.of} groups teach."], _bare(found, updates)
        )
    resamples = {age.age: _resamples(age, groups) for age in ages}
    merits = {age.age: {n: merit(p, resamples[age.age], groups) for n, p in age.products.items()} for age in ages}
    used = [age.age for age in ages]
    names = [candidate.name for candidate in found.candidates]
    values = {name: over_ages({age: merits[age][name].update for age in used}, updates) for name in names}
    last = max(age for age in used if age < updates)
    lines = []
    for name in names:
        low, high, numerics = _clips(found, name, updates)
        largest = max(merits[age][name].largest for age in used)
        update, against = span(values[name]), span(values[name] - values[YOURS])
        of_last = merits[last][name]
        lines.append(
            Standing(name, update, against, span(of_last.direction), span(of_last.noise), largest, low, high, numerics)
        )
    advice = Advice(None, [], lines, {name: {age: span(merits[age][name].update) for age in used} for name in names})
    if updates - 1 not in used:
        advice.reasons.append(
            f"The probe measured at {_ages(used)}, and the run trains at {_ages(range(updates))}: without the last of these "
            "it cannot tell. Probe again with it."
        )
    elif not all(_tells(age, resamples[age.age]) for age in ages if age.age < updates):
        advice.reasons.append(
            "The right gradient cannot be told from noise with so few groups: no direction can be compared. More fresh or "
            "measured groups would help."
        )
    else:
        _choose(advice, found, values, lines)
        if advice.candidate is not None and (beyond := _beyond(found, updates, epochs)):
            advice.candidate = None
            advice.reasons.append(
                f"All the same nothing is recommended: {beyond}. Compare the best with narrower ranges by gspo compare, "
                "over seeds."
            )
    return advice


def _ages(ages: Sequence[int]) -> str:
    return f"age {ages[0]}" if len(ages) == 1 else f"ages {', '.join(map(str, ages))}"


def _beyond(found: Measured, updates: int, epochs: int) -> str:
    """What takes the run beyond rule 6; "" where nothing does."""
    foretold = "single updates did not foretell how runs end"
    if updates > MOST:
        return f"your run makes {updates} updates a batch, and beyond {MOST} {foretold}"
    if epochs > 1:
        return f"your run reads each completion {epochs} times, and measured are completions that no update has read"
    ratios = max((age for age in found.ages if age.age < updates), key=lambda age: age.age).ratios
    moved = ratios.get("recompute", ratios["sampler"])["kl"]  # a coarse sampler's error is no movement
    if moved is not None and moved > FAR:
        return f"within a batch your policy moves by {moved:.1e} nats a token, and beyond {FAR:.0e} {foretold}"
    return ""


def _resamples(age: Age, groups: float) -> Resamples:
    m, r = next(iter(age.products.values())).cross.shape
    return Resamples.of(m, r, age.age, groups)


def _tells(age: Age, resamples: Resamples) -> bool:
    """Whether all right gradients of an age can be told from noise."""
    return all(signal(products.truth, resamples.fresh)[1] for products in age.products.values())


def _clips(found: Measured, name: str, updates: int) -> tuple[float, float, float]:
    """Over the ages that the run trains at, and by numerics alone."""
    ages = [age.age for age in found.ages]
    shares = np.array([age.clipped[name] for age in found.ages])
    low, high = weights_of(ages, updates) @ shares
    return float(low), float(high), float(shares[0].mean())


def _bare(found: Measured, updates: int) -> list[Standing]:
    """Lines of what needs no gradient."""
    none = Span(math.nan, math.nan, math.nan)
    rows = [(candidate.name, *_clips(found, candidate.name, updates)) for candidate in found.candidates]
    return [Standing(name, none, none, none, none, math.nan, low, high, numerics) for name, low, high, numerics in rows]


def better(values: Mapping[str, Array]) -> set[str]:
    """Those that are better than the run's own settings at 95 %, all of them at once: the largest of their errors, in
    standard errors, is bounded by its distribution over the resamples.
    """
    own, others = values[YOURS], [name for name in values if name != YOURS]
    differences = {name: values[name] - own for name in others}
    errors = {name: float(np.nanstd(each[1:])) for name, each in differences.items()}
    known = [name for name in others if math.isfinite(differences[name][0]) and errors[name] > 0]
    if not known:
        return set()
    worst = np.max([(differences[name][1:] - differences[name][0]) / errors[name] for name in known], axis=0)
    bound = float(np.nanquantile(worst, 0.95))
    return {name for name in known if differences[name][0] > bound * errors[name]}


def _choose(advice: Advice, found: Measured, values: Mapping[str, Array], lines: Sequence[Standing]) -> None:
    """Rules 2 to 5."""
    line = {each.name: each for each in lines}
    yours = next(candidate for candidate in found.candidates if candidate.name == YOURS)
    known = [c for c in found.candidates if c.offered and math.isfinite(line[c.name].update.value)]
    sound = [c for c in known if _sound(c, line[c.name].numerics, found.floor["mismatch/kl"])]
    if not sound or not math.isfinite(line[YOURS].update.value):
        advice.reasons.append("Too few groups teach for a number of your settings, or of any other.")
        return
    kept = yours in sound
    ahead = better({c.name: values[c.name] for c in found.candidates if c in sound or c is yours})
    allowed = [c for c in sound if c.name in ahead] if kept else sound
    if not allowed:
        advice.candidate = yours
        top = max(sound, key=lambda c: line[c.name].update.value)
        other = "" if top is yours else f" The highest number has {top.name}: {_told(line[top.name].update)}."
        advice.reasons.append(
            f"No candidate is better than your settings beyond noise. Theirs is {_told(line[YOURS].update)}.{other}"
        )
        return
    best = max(allowed, key=lambda c: line[c.name].update.value)
    near = MARGIN * abs(line[best.name].update.value)
    behind = {c.name: span(values[best.name] - values[c.name]) for c in allowed}
    tied = [c for c in allowed if c is best or behind[c.name].low <= 0 or behind[c.name].value < near]
    own = yours.algorithm.name
    chosen = min(tied, key=lambda c: (_passes(c), c.algorithm.name != own, -line[c.name].update.value))
    advice.candidate = chosen
    if not yours.offered:
        advice.reasons.append("Nothing bounds the updates of your settings: they are a yardstick, and are not recommended.")
    elif not kept:
        advice.reasons.append(
            f"Rounding decides what your settings learn: numerics alone clip {line[YOURS].numerics:.1%} of the tokens "
            f"before any update, and the sampler differs from the trainer by {found.floor['mismatch/kl']:.1e} nats a token. "
            f"Tolerated are {NUMERICS:.0%} and, for a clip of single tokens, {SINGLE:.0e} nats."
        )
    verb = "goes further the right way with each update than" if chosen.name in ahead else "is recommended in place of"
    if yours.algorithm.correction != "none":
        advice.reasons.append(
            f'algorithm.correction = "{yours.algorithm.correction}" was not measured: what is recommended goes without it.'
        )
    advice.reasons.append(
        f"{chosen.name} {verb} your settings: {_told(line[chosen.name].update)} against {_told(line[YOURS].update)}, a "
        f"difference of {_told(line[chosen.name].against, '+z.3f')}."
    )
    if others := [c.name for c in tied if c is not chosen]:
        advice.reasons.append(
            f"With {found.groups} groups the probe cannot tell it from {', '.join(others)}: their differences to the best "
            "are within noise, and the highest of many numbers is higher than it would be another time."
        )


def _sound(candidate: Candidate, numerics: float, kl: float) -> bool:
    """Whether something else than numerics decides what its clip takes."""
    share = 0.0 if candidate.algorithm.epsilon == "auto" else numerics
    return tolerated(candidate.row, share, kl if candidate.likelihoods == "sampler" else 0.0)


def _passes(candidate: Candidate) -> int:
    """Passes over a batch that it needs beside those of the updates: one gives likelihoods and experts."""
    return int(candidate.likelihoods == "recompute" or candidate.replay == "R2")


def _told(value: Span, form: str = ".3f") -> str:
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]"
