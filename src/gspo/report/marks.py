"""What the figure of a single run shows besides its lines: labels of the ends, bands, the clip range, borders of stages."""

from __future__ import annotations

import numpy as np

from gspo.report.chart import ChartMark
from gspo.report.numbers import INTERVAL, borders, percent
from gspo.report.read import TIMES, RunMetrics

MOST_DOTS = 30  # up to this many evaluations get dots and error bars; more get a line and a band
Texts = list[tuple[float, float, bool, str]]


def ends(run: RunMetrics) -> Texts:
    """Labels of the first and the last accuracy: where, whether below the point, and the value."""
    x, (y, low, high) = run.rows(INTERVAL)
    texts = []
    for i in sorted({0, len(x) - 1}) if len(x) else ():
        below = bool(y[i] > 0.15 and (y[-1] < y[0]) == (i > 0))  # away from the line, and clear of the error bar
        texts.append((float(x[i]), float(low[i] if below else high[i]) * 100, below, percent(float(y[i]))))
    return texts


def intervals(run: RunMetrics, colour: int) -> list[ChartMark]:
    """The intervals of accuracies: bars, or a band if there are many."""
    x, (_, low, high) = run.rows(INTERVAL)
    return [ChartMark("", x, 100 * high, 100 * low, colour, "band" if len(x) > MOST_DOTS else "bars")]


def reward_band(run: RunMetrics) -> list[ChartMark]:
    """The spread of rewards within groups, as far as there are rewards, and the guard's alarms."""
    x, (mean, spread, lowest, highest) = run.rows(("reward", "reward_std", "reward_min", "reward_max"))
    low, high = np.maximum(mean - spread, lowest), np.minimum(mean + spread, highest)
    steps, levels = run.series("guard/level")
    alarms = steps[levels == 2]
    band = ChartMark("± standard deviation within a group", x, high, low, 0, "band")
    return [*([band] if len(x) > 1 else []), ChartMark("guard: alarm", alarms, alarms, None, 1, "alarm")]


def ratio_band(run: RunMetrics) -> list[ChartMark]:
    """s - 1: its mean, a band of one standard deviation, and the clip range."""
    x, (mean, spread) = run.rows(("ratio/mean", "ratio/std"))
    mean = mean - 1
    band = ChartMark("± standard deviation", x, mean + spread, mean - spread, 0, "band")
    limits = _limit(run, "clip/epsilon", -1, "clip range") + _limit(run, "clip/epsilon_high", 1, "")
    return [*([band] if len(x) > 1 else []), ChartMark("mean", x, mean), *lone(x, mean), *limits]


def lone(x: np.ndarray, y: np.ndarray, colour: int = 0, most: int = 1) -> list[ChartMark]:
    """Dots, if there are at most so many points."""
    return [ChartMark("", x, y, None, colour, "dots")] if len(x) <= most else []


def _limit(run: RunMetrics, key: str, sign: int, label: str) -> list[ChartMark]:
    """An end of the clip range, in each step."""
    steps, values = run.series(key)
    steps, values = steps[values > 0], values[values > 0]  # the axis may be logarithmic
    if len(steps) == 1:
        steps, values = np.array([steps[0] - 0.4, steps[0] + 0.4]), values.repeat(2)
    return [ChartMark(label, steps, sign * values, None, None, "limit")]


def range_line(run: RunMetrics) -> list[ChartMark]:
    """The clip range, as a distance from 1."""
    return _limit(run, "clip/epsilon", 1, "clip range (epsilon)")


def stages(run: RunMetrics) -> list[ChartMark]:
    """A thin line where a stage begins."""
    at = np.array(borders(run)) - 0.5
    return [ChartMark("", at, at, None, None, "stage")]


def times(run: RunMetrics) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Steps, the seconds of each part of them, and the top of the axis, which cuts off a few long steps."""
    parts = {key: name for key, name in TIMES if len(run.series(key)[0])}
    x, heights = run.rows(list(parts))
    top = 1.25 * float(np.quantile(np.sum(heights, axis=0), 0.98)) if len(x) else 0.0
    return x, dict(zip(parts.values(), heights)), top if top > 0 else 1.0


def tallest(run: RunMetrics) -> float | None:
    """Seconds of the longest step, if it is beyond the axis; otherwise None."""
    x, parts, top = times(run)
    longest = float(np.sum(list(parts.values()), axis=0).max()) if len(x) else 0.0
    return longest if longest > top else None


def time_split(run: RunMetrics) -> list[ChartMark]:
    """How the time of each step is divided: areas above each other."""
    x, parts, _ = times(run)
    if len(x) == 1:  # an area needs two points
        x, parts = np.array([x[0] - 0.4, x[0] + 0.4]), {name: np.repeat(part, 2) for name, part in parts.items()}
    edges = np.cumsum([np.zeros(len(x)), *parts.values()], axis=0)
    return [ChartMark(name, x, high, low, i, "area") for i, (name, low, high) in enumerate(zip(parts, edges, edges[1:]))]
