"""What the plan of mechanism.py foretold, beside what was found: five primary outcomes, each by a rule of the plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from laws import (
    NOT_RUN,
    SEEDS_NEEDED,
    UNTOLD,
    Found,
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

from gspo.statistics.intervals import Interval, interval

AGE, NEAR = 3, 1.25
HOLDS, FAILS, OPEN = "holds", "fails", "open"
SEEN = 0  # the seed of the cell that changed outcome 5
RANGES = ("gspo auto", "gspo 0.03")
CHANCE = 0.025  # that a 95 % interval lies above 0 where nothing differs
EXPECTED = ("jitter-0.1", "jitter-0.3", "precision-int4")  # where GSPO may be ahead


def line(dial: str, age: int = AGE) -> list[Place]:
    """The places of a dial at an age."""
    return [place for place in places(dial) if place.age == age]


def all_points() -> list[tuple[str, Place]]:
    """Each point of the study, once, by a dial that has it: several share some."""
    points: dict[Point, tuple[str, Place]] = {}
    for dial in DIALS:
        for place in line(dial):
            points.setdefault(place.point, (dial, place))
    return list(points.values())


def fresh(found: Found) -> Found:
    """Without the seed that was seen before the rule of outcome 5 was made."""
    return Found([each for each in found.results if each["settings"]["seed"] != SEEN])


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for each."""
    found = Found(results)
    rows = [
        ["foretold, at 3 updates", "found", "verdict"],
        *length(found),
        drifts(found),
        rate(found),
        tails(found),
        *best(found),
    ]
    return markdown(rows)


def lies(value: Interval, low: float, high: float) -> str:
    """A verdict: the whole interval inside holds, the whole of it outside fails, else it is open."""
    if low <= value.low and value.high <= high:
        return HOLDS
    return FAILS if value.low > high or value.high < low else OPEN


def exponent(found: Found, words: str, dial: str, quantity: Quantity, range_: tuple[float, float]) -> list[str]:
    """A row: the exponent of a dial that is a number. It holds only where all points are on the line."""
    here = [place for place in line(dial) if place.x is not None]
    if len(found.seeds(here)) < SEEDS_NEEDED:
        return [words, "", NOT_RUN]
    law = along(found, here, quantity)
    if law is None:
        return [words, "", UNTOLD]
    verdict = lies(law.b, *range_)
    if verdict == HOLDS and (law.stops or not law.holds):
        verdict = OPEN
    return [words, f"b = {spelled(law.b, '+z.2f')}{f', up to {law.last}' if law.stops else ''}", verdict]


def length(found: Found) -> list[list[str]]:
    """1: the spread falls with the length, the drift does not."""
    shift, rising = (lambda age: abs(age["ratios"]["sampler"]["drift"])), (0.0, math.inf)
    spread, falling = of_ratio("sd_completion"), (-0.5, -0.35)
    return [
        exponent(found, "1. sd(log s) ~ length^b, b from -.5 to -.35", "length", spread, falling),
        exponent(found, "1. abs. drift ~ length^b, b not below 0", "length", shift, rising),
    ]


def drifts(found: Found) -> list[str]:
    """2: the drift in standard deviations."""
    words = "2. abs. drift / sd(log s) = sqrt(KL T / 2) within a quarter, at each length"
    here = line("length")
    if any(len(found.at(place)) < SEEDS_NEEDED for place in here):
        return [words, "", NOT_RUN]
    shares, verdicts = [], []
    for place in here:
        mine, said = found.values(place, drift), found.values(place, foretold(place.point))
        shares.append(interval([mine[seed] / said[seed] for seed in mine if said.get(seed)]))
        verdicts.append(lies(shares[-1], 1 / NEAR, NEAR))
    if any(share.n < len(found.at(place)) for share, place in zip(shares, here)):
        return [words, "", UNTOLD]
    means = [share.mean for share in shares]
    return [words, f"{min(means):.2f} to {max(means):.2f} of it", both(verdicts)]


def both(verdicts: Sequence[str]) -> str:
    """Of all parts of an outcome: one that fails fails it, and it holds where all do."""
    return FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS


def rate(found: Found) -> list[str]:
    """3: how fast the ratios spread."""
    words = "3. sd of the token's log-ratio ~ rate^b, b from .5 to 1"
    return exponent(found, words, "rate", of_ratio("sd_token"), (0.5, 1.0))


def ends() -> list[Place]:
    """The mixture and its dense control, after 1 update."""
    here = {place.label.partition(",")[0]: place for place in line("experts", 1)}
    return [here["32"], here["dense"]]


def tails(found: Found) -> list[str]:
    """4: heavy with experts."""
    words = "4. tail index after 1 update: below 2 for the mixture, above 5 for the dense control"
    ran = [len(found.at(place)) for place in ends()]
    if min(ran) < SEEDS_NEEDED:
        return [words, "", NOT_RUN]
    mixture, dense = (interval([*found.values(place, of_ratio("tail")).values()]) for place in ends())
    if [mixture.n, dense.n] != ran:
        return [words, "", UNTOLD]
    verdict = both([lies(mixture, -math.inf, 2), lies(dense, 5, math.inf)])
    return [words, f"{spelled(mixture, '.1f')}; {spelled(dense, '.1f')}", verdict]


def best(found: Found) -> list[list[str]]:
    """5: where an update of GSPO is better than one of GRPO, by the fresh seeds."""
    found = fresh(found)
    words = f"5. update of gspo no better than grpo's, but at {', '.join(EXPECTED)}"
    on_mean = "5. nor on the mean over all but these"
    above, expected, untold, others, everywhere = [], [], [], 0, []
    for dial, place in all_points():
        if len(found.at(place)) < SEEDS_NEEDED:
            return [[words, "", NOT_RUN], [on_mean, "", NOT_RUN]]
        foreseen = f"{dial}-{place.label.partition(',')[0]}" in EXPECTED
        for name in RANGES:
            values = found.values(place, ahead(name))
            value = interval([*values.values()])
            where = f"{name} at {dial} {place.label}"
            if not foreseen:
                others += 1
                everywhere.append(values)
            if value.n < SEEDS_NEEDED:
                untold += [] if foreseen else [where]
            elif value.low > 0:
                (expected if foreseen else above).append(where)
    said = f"{len(above)} of {others} others above 0, by chance {CHANCE * others:.1f}"
    said += f": {', '.join(above)}" * bool(above) + f"; as expected: {', '.join(expected)}" * bool(expected)
    if untold:
        said += f"; {UNTOLD}: {', '.join(untold)}"
    verdict = FAILS if len(above) >= too_many(others) else UNTOLD if untold else OPEN if above else HOLDS
    return [[words, said, verdict], [on_mean, *mean_of(everywhere)]]


def mean_of(points: Sequence[dict[int, float]]) -> list[str]:
    """The mean over points, by seeds that have a number at each; and whether it lies at 0 or below."""
    whole = set.intersection(*map(set, points))
    if len(whole) < SEEDS_NEEDED:
        return ["", UNTOLD]
    value = interval([sum(point[seed] for point in points) / len(points) for seed in sorted(whole)])
    return [spelled(value, "+z.3f"), lies(value, -math.inf, 0.0)]


def too_many(intervals: int) -> int:
    """So many of them lie above 0 by chance in at most one study of twenty, where nothing differs and they know nothing of
    one another.
    """
    left, many = 1.0, 0
    while left > 0.05:
        left -= math.comb(intervals, many) * CHANCE**many * (1 - CHANCE) ** (intervals - many)
        many += 1
    return many
