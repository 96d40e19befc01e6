"""The tables of lab/mechanism.md: what each dial of mechanism.py did, and where a power law holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from mechanism import DIALS, Point, ProbeCell

from gspo.compare.measures import NO_SIGN, UNBOUNDED
from gspo.report.read import is_number
from gspo.statistics.intervals import Interval, interval

SEEDS_NEEDED, POINTS_NEEDED = 3, 3
OFF = math.log(1.25)  # from the line
Result = dict[str, Any]
Quantity = Callable[[Result], float | None]
"""What is read of one age of one cell."""
OBJECTIVES = (
    "gspo 0.0003", "gspo 0.003", "gspo 0.03", "gspo auto", "yours", "grpo 0.2", "grpo_dual 0.2", "sapo", "cispo", "dppo_tv",
    "reinforce", "reinforce_is",
)  # fmt: skip
AUTO = "auto"  # in a name: a range that was made from all ages of a batch
TITLES = {"yours": "gspo_token 0.03"}
NOT_RUN = "not run"
UNTOLD = "cannot be told"  # it ran, but too few seeds have the number


class Place(NamedTuple):
    """One row of a dial's tables: a point at an age. x: the dial's number, None where it has none. series: places with the
    same are on one line.
    """

    series: str
    label: str
    x: float | None
    point: Point
    age: int


def places(dial: str) -> list[Place]:
    """Of a dial, in the order of its tables."""
    points = DIALS[dial]
    if dial in ("age", "staleness"):
        return [Place(name, f"{name}, {age}", age or None, p, age) for name, p in points.items() for age in p.ages]
    ages = (0, 3) if dial in ("jitter", "precision") else (1, 3)
    return [
        Place(_updates(age), f"{label}, {_updates(age)}", _number(label), point, age)
        for age in ages
        for label, point in points.items()
    ]


def _updates(age: int) -> str:
    return f"{age} update{'' if age == 1 else 's'}"


def _number(label: str) -> float | None:
    """The number of a dial, where it is one that has a logarithm."""
    try:
        return float(label) or None
    except ValueError:
        return None


@dataclass(frozen=True)
class Found:
    """The cells that were run, by what they were."""

    results: Sequence[Result]

    @cached_property
    def _looked_up(self) -> dict[Place, dict[int, Result]]:
        """What `at` was asked for: the tables ask thousands of times."""
        return {}

    def at(self, place: Place) -> Mapping[int, Result]:
        """By seed, what was found at a place."""
        if place not in self._looked_up:
            found = self._looked_up[place] = {}
            for each in self.results:
                seed = each["settings"]["seed"]
                if each["settings"] == ProbeCell(place.point, seed).settings:
                    found.update((seed, age) for age in each["ages"] if age["age"] == place.age)
        return self._looked_up[place]

    def values(self, place: Place, quantity: Quantity) -> dict[int, float]:
        """By seed; without those that have none."""
        read = {seed: quantity(age) for seed, age in self.at(place).items()}
        return {seed: float(value) for seed, value in read.items() if value is not None and is_number(value)}

    def seeds(self, line: Sequence[Place]) -> list[int]:
        """Those that ran at all of these places."""
        return sorted(set.intersection(*(set(self.at(place)) for place in line))) if line else []

    def spelled(self, place: Place, quantity: Quantity, form: str, bounds: tuple[float, float] = UNBOUNDED) -> str:
        """A cell of a table; with n where some of the seeds that ran have no number. bounds: of what was measured."""
        value = interval([*self.values(place, quantity).values()], bounds)
        return spelled(value, form) + f" (n = {value.n})" * (0 < value.n < len(self.at(place)))


def of_ratio(name: str) -> Quantity:
    """A number of the log-ratio to the sampler."""
    return lambda age: age["ratios"]["sampler"][name]


def of_merit(part: str, name: str) -> Quantity:
    """The direction, noise or update of an objective, where the right gradient could be told from noise."""

    def read(age: Result) -> float | None:
        merit = age["merits"].get(name)
        return merit[part][0] if merit and (merit["told"] or part == "noise") else None

    return read


def ahead(name: str) -> Quantity:
    """How much further an update of an objective goes the right way than one of grpo."""

    def read(age: Result) -> float | None:
        one, other = (of_merit("update", each)(age) for each in (name, "grpo 0.2"))
        return None if one is None or other is None else one - other

    return read


def drift(age: Result) -> float | None:
    """|drift| / sd of log s."""
    ratio = age["ratios"]["sampler"]
    return abs(ratio["drift"]) / ratio["sd_completion"] if ratio["sd_completion"] else None


def experts_changed(age: Result) -> float | None:
    """Share of the sampler's experts that the policy does not choose."""
    return None if age["agreement"] is None else 1 - age["agreement"]


def foretold(point: Point) -> Quantity:
    """What `drift` is where the tokens' log-ratios are small and independent."""
    return lambda age: math.sqrt(age["ratios"]["sampler"]["kl"] * point.length / 2)


COLUMNS: dict[str, tuple[Callable[[Point], Quantity], str, tuple[float, float]]] = {
    "sd of token": (lambda p: of_ratio("sd_token"), ".4f", NO_SIGN),
    "sd of log s": (lambda p: of_ratio("sd_completion"), ".5f", NO_SIGN),
    "drift": (lambda p: of_ratio("drift"), "+z.5f", UNBOUNDED),
    "abs. drift / sd": (lambda p: drift, ".2f", NO_SIGN),
    "foretold": (foretold, ".2f", NO_SIGN),
    "KL": (lambda p: of_ratio("kl"), ".1e", NO_SIGN),
    "tail index": (lambda p: of_ratio("tail"), ".1f", NO_SIGN),
    "experts changed": (lambda p: experts_changed, ".2%", (0.0, 1.0)),
    "exponent of sd(log s) by length": (lambda p: lambda age: age["law"] and age["law"][0], "+z.2f", UNBOUNDED),
    "update: gspo auto - grpo": (lambda p: ahead("gspo auto"), "+z.3f", UNBOUNDED),
    "gspo 0.03 - grpo": (lambda p: ahead("gspo 0.03"), "+z.3f", UNBOUNDED),
}


def sound(dial: str, names: Iterable[str]) -> list[str]:
    """Without the automatic range where a batch is updated on once, at age 0: it would be made from rounding."""
    once = all(point.mini_batches * point.epochs == 1 for point in DIALS[dial].values())
    return [name for name in names if not (once and AUTO in name)]


def ratios(found: Found, dial: str) -> str:
    """The log-ratios at each place, mean over seeds and 95 % interval."""
    columns = {name: COLUMNS[name] for name in sound(dial, COLUMNS)}
    rows = [["", "n", *columns]]
    for place in places(dial):
        count = len(found.at(place))
        cells = [found.spelled(place, of(place.point), form, ends) for of, form, ends in columns.values()]
        rows.append([place.label, str(count), *cells] if count else [place.label, NOT_RUN, *[""] * len(columns)])
    return markdown(rows)


def merits(found: Found, dial: str, here: Sequence[Place], part: str) -> str:
    """A number of each objective's gradient at these places."""
    rows = [_head(here)]
    for name in sound(dial, OBJECTIVES):
        form, ends = (".2f", (-1.0, 1.0)) if part == "direction" else (".3f", UNBOUNDED)
        rows.append([TITLES.get(name, name), *(found.spelled(place, of_merit(part, name), form, ends) for place in here)])
    return markdown(rows)


def clipped(found: Found, dial: str, here: Sequence[Place]) -> str:
    """Shares of the tokens that each clip takes the gradient from, where A < 0 and where A > 0, mean over seeds."""
    rows = [_head(here)]
    for name in sound(dial, OBJECTIVES):
        each = [np.mean([age["clipped"][name] for age in found.at(place).values()], axis=0) for place in here]
        rows.append([TITLES.get(name, name), *(f"{low:.1%} / {high:.1%}" for low, high in each)])
    return markdown(rows)


def _head(here: Sequence[Place]) -> list[str]:
    """The points of a series."""
    return ["", *(place.label.replace(place.series, "").strip(", ") for place in here)]


class Law(NamedTuple):
    """log q = a + b log x. b: over seeds. last: the label of the last point on the line. stops: whether points beyond it are
    off the line. holds: whether it is a law.
    """

    b: Interval
    last: str
    stops: bool
    holds: bool


def fit(points: Sequence[tuple[str, float]], values: Sequence[Mapping[int, float]], seeds: Sequence[int]) -> Law | None:
    """The law of these points, by the rule of the plan. values: of each point, by seed. seeds: those that ran at all points.
    None where there are too few points or seeds, or where a seed has no number, or none with a logarithm: to leave it out
    would be to choose by what was found.
    """
    if len(points) < POINTS_NEEDED or len(seeds) < SEEDS_NEEDED:
        return None
    if not all(each.get(seed, 0.0) > 0 for each in values for seed in seeds):
        return None
    x = np.log([number for _, number in points])
    y = np.log([[each[seed] for each in values] for seed in seeds])  # [seeds, points]
    for count in range(len(points), POINTS_NEEDED - 1, -1):
        lines = np.stack([np.polyfit(x[:count], row[:count], 1) for row in y])
        left = y[:, :count] - (lines[:, :1] * x[:count] + lines[:, 1:])
        off = [interval(column) for column in left.T]
        b = interval(lines[:, 0])
        straight = not any(each.low > OFF or each.high < -OFF for each in off)
        if straight or count == POINTS_NEEDED:
            break
    return Law(b, points[count - 1][0], count < len(points), straight and (b.low > 0 or b.high < 0))


def along(found: Found, line: Sequence[Place], quantity: Quantity) -> Law | None:
    """The fit of a line of places that have numbers."""
    points = [(place.label, place.x or math.nan) for place in line]
    return fit(points, [found.values(place, quantity) for place in line], found.seeds(line))


def lost(name: str) -> Quantity:
    """1 - the direction of an objective."""

    def read(age: Result) -> float | None:
        direction = of_merit("direction", name)(age)
        return None if direction is None else 1 - direction

    return read


LAWS: dict[str, Quantity] = {
    "sd of token": of_ratio("sd_token"),
    "sd of log s": of_ratio("sd_completion"),
    "abs. drift": lambda age: abs(age["ratios"]["sampler"]["drift"]),
    "KL": of_ratio("kl"),
    "experts changed": experts_changed,
    **{f"signal to noise, {TITLES.get(name, name)}": of_merit("noise", name) for name in OBJECTIVES},
    **{f"direction lost, {TITLES.get(name, name)}": lost(name) for name in OBJECTIVES},
}


def laws(found: Found, dial: str, lines: Mapping[str, Sequence[Place]]) -> str:
    """The exponent of each quantity along each line; "" where the dial is no number."""
    lines = {name: [place for place in line if place.x is not None] for name, line in lines.items()}
    lines = {name: line for name, line in lines.items() if len(line) >= POINTS_NEEDED}
    if not lines:
        return ""
    rows = [["b of q ~ x^b", *lines]]
    for title in sound(dial, LAWS):
        rows.append([title, *(_law(found, line, LAWS[title]) for line in lines.values())])
    return markdown(rows)


def _law(found: Found, line: Sequence[Place], quantity: Quantity) -> str:
    """A cell of the table of laws."""
    seeds = len(found.seeds(line))
    if seeds < SEEDS_NEEDED:
        return f"{NOT_RUN}: {seeds} of {SEEDS_NEEDED} seeds"
    law = along(found, line, quantity)
    if law is None:
        return UNTOLD
    return f"{spelled(law.b, '+z.2f')}{f', up to {law.last}' if law.stops else ''}{'' if law.holds else ': no law'}"


def spelled(value: Interval, form: str) -> str:
    """Mean and interval; the mean alone where it has none; nothing where there is no number."""
    if not value.n:
        return ""
    if math.isnan(value.low):
        return format(value.mean, form)
    return f"{value.mean:{form}} [{value.low:{form}}, {value.high:{form}}]"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def tables(results: Sequence[Result], dial: str) -> str:
    """All tables of a dial."""
    found, here = Found(results), places(dial)
    if not any(found.at(place) for place in here):
        return f"{NOT_RUN.capitalize()}.\n"
    lines: dict[str, list[Place]] = {}
    for place in here:
        lines.setdefault(place.series, []).append(place)
    parts = {"Log-ratios to the sampler": ratios(found, dial)}
    for name, line in lines.items():
        if run := [place for place in line if found.at(place)]:
            parts[f"Direction of the gradient, {name}"] = merits(found, dial, run, "direction")
            parts[f"Signal to noise of an update, {name}"] = merits(found, dial, run, "noise")
            parts[f"Clipped where A < 0 / where A > 0, {name}"] = clipped(found, dial, run)
    parts["Laws"] = laws(found, dial, lines)
    return "\n".join(f"{title}:\n\n{table}" for title, table in parts.items() if table)
