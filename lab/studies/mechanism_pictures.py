"""The pictures of lab/mechanism.md: each shows one thing, by the numbers of the tables below it there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from foretold import all_points, line
from laws import Found, Place, Quantity, ahead, drift, of_merit, of_ratio, places
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from gspo.compare.measures import NO_SIGN
from gspo.statistics.intervals import interval

sys.path.append(str(Path(__file__).resolve().parents[1]))
from canvas import DARK, LIGHT, Theme, canvas, finish

Series = tuple[str, Sequence[Place], Quantity, tuple[float, float]]
"""Of a curve: its label, its places from left to right, what is read there, and the bounds of what was measured."""
SIGNED = (-1.0, 1.0)
SHARES = (0.0, 1.0)
WIDE = {"gspo 0.03": "GSPO, range 0.03", "grpo 0.2": "GRPO, range 0.2", "sapo": "SAPO", "cispo": "CISPO"}


def aged(dial: str, series: str) -> list[Place]:
    """The places of a model of the dials `age` and `staleness`."""
    return [place for place in places(dial) if place.series == series]


def curves(ax: Axes, theme: Theme, found: Found, series: Sequence[Series], x: Callable[[Place], float]) -> None:
    """Means over seeds and their 95 % intervals."""
    for number, (label, here, quantity, bounds) in enumerate(series):
        told = [(x(place), interval([*found.values(place, quantity).values()], bounds)) for place in here]
        told = [(at, value) for at, value in told if value.n > 1]
        at, middle = [at for at, _ in told], np.array([value.mean for _, value in told])
        reach = np.array([[value.mean - value.low, value.high - value.mean] for _, value in told]).T
        dashed = "--" if label.endswith("dense") else "-"
        ax.errorbar(
            at, middle, reach, color=theme.series[number], marker="o", ms=4, lw=1.6, ls=dashed, capsize=2.5, label=label
        )


def name_updates(ax: Axes, ages: Sequence[int]) -> None:
    """Evenly spaced, as their steps grow."""
    ax.set_xticks(range(len(ages)), [str(age) for age in ages])
    ax.set_xlabel("updates since sampling, each on a new batch")


def spread(theme: Theme, found: Found, path: Path) -> None:
    """The reply's ratio against the length."""
    here = [place for place in line("length") if found.at(place)]
    with canvas(theme) as (figure, ax):
        shift: Quantity = lambda age: abs(age["ratios"]["sampler"]["drift"])  # noqa: E731
        told: list[Series] = [
            ("spread of log s", here, of_ratio("sd_completion"), NO_SIGN), ("size of its drift", here, shift, NO_SIGN),
        ]  # fmt: skip
        curves(ax, theme, found, told, lambda place: place.x or 0.0)
        lengths = np.array([place.x for place in here])
        first = interval([*found.values(here[0], of_ratio("sd_completion")).values()]).mean
        root = first * (lengths / lengths[0]) ** -0.5
        ax.errorbar(lengths, root, color=theme.ink, lw=1, ls=":", label="1/sqrt(length)")
        finish(figure, ax, "Spread falls, drift stays", "log s after 3 updates")
        ax.set_yscale("log", nonpositive="clip")
        ax.set_ylim(1e-3, 0.1)
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [f"{length:g}" for length in lengths])
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_minor_locator(NullLocator())
        ax.set_xlabel("tokens of a completion")
        figure.savefig(path)


def by_updates(theme: Theme, path: Path, found: Found, series: Sequence[Series], title: str, unit: str, **how: Any) -> None:
    """Curves against the updates since sampling."""
    ages = [place.age for place in series[0][1]]
    with canvas(theme) as (figure, ax):
        curves(ax, theme, found, series, lambda place: ages.index(place.age))
        if min(ax.dataLim.intervaly) < 0:
            ax.axhline(0, color=theme.ink, lw=1)
        finish(figure, ax, title, unit, **how)
        name_updates(ax, ages)
        figure.savefig(path)


def shifts(theme: Theme, found: Found, path: Path) -> None:
    """The drift in standard deviations."""
    series: list[Series] = [(model, aged("staleness", model), drift, NO_SIGN) for model in ("mixture", "dense")]
    by_updates(theme, path, found, series, "Replies shift together", "|drift| / spread of log s")


def directions(theme: Theme, found: Found, path: Path) -> None:
    """Where the gradient points."""
    here = aged("staleness", "mixture")
    series: list[Series] = [(label, here, of_merit("direction", name), SIGNED) for name, label in WIDE.items()]
    by_updates(theme, path, found, series, "What a hard clip leaves points back", "cosine with the right gradient")


def sides(theme: Theme, found: Found, path: Path) -> None:
    """What is clipped, by the sign of the advantage."""
    here = aged("staleness", "mixture")

    def share(name: str, side: int) -> Quantity:
        return lambda age: age["clipped"][name][side]

    series: list[Series] = [
        (f"{name.split(',')[0]}, A {sign} 0", here, share(key, side), SHARES)
        for key, name in [*WIDE.items()][:2]
        for side, sign in enumerate("<>")
    ]
    by_updates(theme, path, found, series, "A sequence clip takes one side", "tokens clipped")


def updates(theme: Theme, found: Found, path: Path) -> None:
    """At each point of the study, how much better an update of GSPO is than one of GRPO."""
    points = [(f"{dial} {place.label.partition(',')[0]}", place) for dial, place in all_points()]
    with canvas(theme) as (figure, ax):
        for number, name in enumerate(("gspo 0.03", "gspo auto")):
            for at, (_, place) in enumerate(points):
                value = interval([*found.values(place, ahead(name)).values()])
                if value.n < 2:
                    continue
                y = at + 0.18 * (2 * number - 1)
                label = f"GSPO {name.split()[1]} - GRPO 0.2" if at == 0 else None
                ax.plot([value.low, value.high], [y, y], color=theme.series[number], lw=1.8, solid_capstyle="round")
                ax.plot(value.mean, y, "o", color=theme.series[number], ms=4.5, label=label)
        ax.axvline(0, color=theme.ink, lw=1)
        finish(figure, ax, "GSPO at 0.03 leads, auto trails", "")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:+z.1f}".replace("-", "−")))
        ax.set_xticks(np.linspace(-0.6, 0.6, 7))
        ax.set_xlim(-0.6, 0.6)
        ax.set_yticks(range(len(points)), [words for words, _ in points], fontsize=8.5)
        ax.set_ylim(len(points) - 0.4, -0.6)
        ax.grid(True, axis="x", lw=0.7)
        ax.grid(False, axis="y")
        ax.set_xlabel("cosine of an update with the right gradient: difference", fontsize=10)
        width, height = 6.2, 0.21 * len(points) + 1.3
        figure.set_size_inches(width, height)
        figure.subplots_adjust(1.5 / width, 0.85 / height, 0.95, 1 - 0.4 / height)
        figure.savefig(path)


PICTURES: Mapping[str, Callable[[Theme, Found, Path], None]] = {
    "spread": spread, "drift": shifts, "direction": directions, "sides": sides, "updates": updates,
}  # fmt: skip


def draw(results: Sequence[dict[str, Any]], folder: Path) -> None:
    """All of them, light and dark."""
    found = Found(results)
    for name, picture in PICTURES.items():
        for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
            picture(theme, found, folder / f"mechanism-{name}{suffix}.png")
