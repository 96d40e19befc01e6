"""What the plan of mechanism.py foretold, beside what was found: five primary outcomes, each by a rule of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laws import (
    NOT_RUN,
    SEEDS_NEEDED,
    UNTOLD,
    Found,
    Law,
    Place,
    Quantity,
    ahead,
    along,
    drift,
    foretold,
    markdown,
    of_ratio,
    places,
    spelled,
)
from mechanism import DIALS, Point

from gspo.study.analysis import interval

AGE, NEAR = 3, 1.25
SEEN = 0  # the seed of the cell that changed outcome 5
RANGES = ("gspo auto", "gspo 0.03")
CHANCE = 0.025  # that a 95 % interval lies above 0 where nothing differs
EXPECTED = ("jitter-0.1", "jitter-0.3", "precision-int4")  # where GSPO may be ahead


def line(dial: str, age: int = AGE) -> list[Place]:
    """The places of a dial at an age."""
    return [place for place in places(dial) if place.age == age]


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for each."""
    found = Found(results)
    rows = [
        ["foretold, at 3 updates", "found", "verdict"],
        *length(found),
        drifts(found),
        rate(found),
        tails(found),
        best(found),
    ]
    return markdown(rows)


def law(found: Found, dial: str, quantity: Quantity) -> Law | None:
    """The fit of a dial that is a number; None where it was not run, or has no logarithm."""
    here = [place for place in line(dial) if place.x is not None]
    if len(found.seeds(here)) < SEEDS_NEEDED:
        return None
    return along(found, here, quantity)


def row(words: str, found: str, holds: bool | None) -> list[str]:
    """holds = None: not run."""
    return [words, "" if holds is None else found, NOT_RUN if holds is None else "holds" if holds else "fails"]


def length(found: Found) -> list[list[str]]:
    """1: the spread falls with the length, the drift does not."""
    sd = law(found, "length", of_ratio("sd_completion"))
    shift = law(found, "length", lambda age: abs(age["ratios"]["sampler"]["drift"]))
    return [
        row("1. sd(log s) ~ length^b, b from -.5 to -.35", _b(sd), sd and -0.5 <= sd.b.mean <= -0.35),
        row("1. abs. drift ~ length^b, b not below 0", _b(shift), shift and shift.b.high >= 0),
    ]


def _b(each: Law | None) -> str:
    return "" if each is None else f"b = {spelled(each.b, '+.2f')}{f', up to {each.last}' if each.stops else ''}"


def drifts(found: Found) -> list[str]:
    """2: the drift in standard deviations."""
    words = "2. abs. drift / sd(log s) = sqrt(KL T / 2) within a quarter, at each length"
    shares = []
    for place in line("length"):
        mine, said = found.values(place, drift), found.values(place, foretold(place.point))
        share = interval([mine[seed] / said[seed] for seed in mine if said.get(seed)])
        if share.n < SEEDS_NEEDED:
            return row(words, "", None)
        shares.append(share)
    means = [share.mean for share in shares]
    near = all(share.low <= NEAR and share.high >= 1 / NEAR for share in shares)
    return row(words, f"{min(means):.2f} to {max(means):.2f} of it", near)


def rate(found: Found) -> list[str]:
    """3: how fast the ratios spread."""
    sd = law(found, "rate", of_ratio("sd_token"))
    return row("3. sd of the token's log-ratio ~ rate^b, b from .5 to 1", _b(sd), sd and 0.5 <= sd.b.mean <= 1)


def tails(found: Found) -> list[str]:
    """4: heavy with experts."""
    words = "4. tail index after 1 update: below 2 for the mixture, above 5 for the dense control"
    here = {place.label.partition(",")[0]: place for place in line("experts", 1)}
    mixture, dense = (interval([*found.values(here[name], of_ratio("tail")).values()]) for name in ("32", "dense"))
    if min(mixture.n, dense.n) < SEEDS_NEEDED:
        return row(words, "", None)
    return row(words, f"{spelled(mixture, '.1f')}; {spelled(dense, '.1f')}", mixture.mean < 2 and dense.mean > 5)


def best(found: Found) -> list[str]:
    """5: where an update of GSPO is better than one of GRPO. A point that several dials share counts once, and the
    seed that was seen before the rule was made does not.
    """
    found = Found([each for each in found.results if each["settings"]["seed"] != SEEN])
    words = f"5. update of gspo no better than grpo's, but at {', '.join(EXPECTED)}"
    points: dict[Point, tuple[str, Place]] = {}
    for dial in DIALS:
        for place in line(dial):
            points.setdefault(place.point, (dial, place))
    above, expected, untold, others = [], [], [], 0
    for dial, place in points.values():
        if len(found.at(place)) < SEEDS_NEEDED:
            return row(words, "", None)
        foreseen = f"{dial}-{place.label.partition(',')[0]}" in EXPECTED
        for name in RANGES:
            value = interval([*found.values(place, ahead(name)).values()])
            where = f"{name} at {dial} {place.label}"
            others += not foreseen
            if value.n < SEEDS_NEEDED:
                untold += [] if foreseen else [where]
            elif value.low > 0:
                (expected if foreseen else above).append(where)
    said = f"{len(above)} of {others} others above 0, by chance {CHANCE * others:.1f}"
    said += f": {', '.join(above)}" * bool(above) + f"; as expected: {', '.join(expected)}" * bool(expected)
    if untold:
        said += f"; {UNTOLD}: {', '.join(untold)}"
    return [words, said, "fails" if above else UNTOLD if untold else "holds"]
