"""What the figure of a single run shows besides its lines: labels of the ends, bands, the clip range, borders of stages."""

from __future__ import annotations

from typing import Any

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.axes import Axes

from gspo.report.canvas import LIGHT
from gspo.report.read import TIMES, RunMetrics

INTERVAL = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
MOST_DOTS = 30  # up to this many evaluations get dots and error bars; more get a line and a band
SMOOTH_FROM = 150  # number of points from which a running mean is drawn over the raw line


def ends(ax: Axes, run: RunMetrics) -> None:
    """Labels the first and the last accuracy with their values."""
    x, y = run.series("eval/accuracy")
    steps, (_, *bars) = run.rows(INTERVAL)
    reach = {step: ends for step, *ends in zip(steps, *bars)}  # keeps the label clear of the error bar
    for i in {0, len(x) - 1} if len(x) else ():
        below = y[i] > 0.15 and (y[-1] < y[0]) == (i > 0)  # away from the line
        low, high = reach.get(x[i], (y[i], y[i]))
        end = min(low, y[i]) if below else max(high, y[i])
        offset, side = (-6, "top") if below else (6, "bottom")
        place: Any = {"xytext": (0, offset), "textcoords": "offset points", "ha": "center", "va": side}
        clear = [effects.withStroke(linewidth=3, foreground=LIGHT.paper)]  # an outline keeps it readable across the line
        ax.annotate(f"{100 * y[i]:.0f} %", (x[i], end * 100), color=LIGHT.ink, weight="bold", path_effects=clear, **place)


def error_bars(ax: Axes, run: RunMetrics, colour: str) -> None:
    """Draws the intervals of accuracies, as a band if there are many."""
    x, (y, low, high) = run.rows(INTERVAL)
    if len(x) > MOST_DOTS:
        ax.fill_between(x, low * 100, high * 100, color=colour, alpha=0.18, lw=0)
    elif len(x):
        spread = np.maximum([y - low, high - y], 0) * 100
        ax.errorbar(x, y * 100, spread, fmt="none", ecolor=colour, elinewidth=1.3, capsize=2.5)


def reward_band(ax: Axes, run: RunMetrics) -> None:
    """Draws the spread of rewards within groups, as far as there are rewards, and the guard's alarms."""
    x, (mean, spread, lowest, highest) = run.rows(("reward", "reward_std", "reward_min", "reward_max"))
    if len(x) > 1:
        low, high = np.maximum(mean - spread, lowest), np.minimum(mean + spread, highest)
        label = "± standard deviation within a group"
        ax.fill_between(x, low, high, color=LIGHT.series[0], alpha=0.18, lw=0, label=label)
    steps, levels = run.series("guard/level")
    for i, step in enumerate(steps[levels == 2]):
        ax.axvspan(step - 0.5, step + 0.5, color=LIGHT.series[1], alpha=0.25, lw=0, label="" if i else "guard: alarm")


def ratio_band(ax: Axes, run: RunMetrics) -> None:
    """Draws s - 1: its mean, a band of one standard deviation, and the clip range."""
    x, (mean, spread) = run.rows(("ratio/mean", "ratio/std"))
    mean = mean - 1
    width, dot = 1.6 if len(x) < SMOOTH_FROM else 0.8, "o" if len(x) == 1 else None
    ax.plot(x, mean, color=LIGHT.series[0], lw=width, label="mean", marker=dot)
    if len(x) > 1:
        label = "± standard deviation"
        ax.fill_between(x, mean - spread, mean + spread, color=LIGHT.series[0], alpha=0.18, lw=0, label=label)
    for key, sign, label in (("clip/epsilon", -1, "clip range"), ("clip/epsilon_high", 1, "")):
        _limit(ax, run, key, sign, label)


def _limit(ax: Axes, run: RunMetrics, key: str, sign: int, label: str) -> None:
    """Draws an end of the clip range: a straight line, or its value in each step if the range adapts."""
    steps, values = run.series(key)
    steps, values = steps[values > 0], values[values > 0]  # the axis may be logarithmic
    style: Any = {"color": LIGHT.ink, "lw": 1.4, "ls": "--", "label": label}
    if len(set(values.tolist())) == 1:
        ax.axhline(sign * values[-1], **style)
    elif len(values):
        ax.step(steps, sign * values, where="mid", **style)


def range_line(ax: Axes, run: RunMetrics) -> None:
    """Draws the clip range, as a distance from 1."""
    _limit(ax, run, "clip/epsilon", 1, "clip range (epsilon)")


def stage_lines(ax: Axes, run: RunMetrics) -> None:
    """Draws a thin line where a stage begins."""
    for step in borders(run):
        ax.axvline(step - 0.5, color=LIGHT.ink, lw=0.6, alpha=0.6, zorder=0)


def borders(run: RunMetrics) -> list[float]:
    """The steps at which a new stage begins."""
    steps, stages = run.series("stage")
    return [float(step) for step, before, stage in zip(steps[1:], stages, stages[1:]) if stage > before]


def _times(run: RunMetrics) -> tuple[np.ndarray, dict[str, np.ndarray], float]:
    """Steps, the seconds of each part of them by its name, and the top of the axis, which cuts off a few long steps that
    would flatten the rest.
    """
    parts = {key: name for key, name in TIMES if len(run.series(key)[0])}
    x, heights = run.rows(list(parts))
    top = 1.25 * float(np.quantile(np.sum(heights, axis=0), 0.98)) if len(x) else 0.0
    return x, dict(zip(parts.values(), heights)), top or 1.0


def tallest(run: RunMetrics) -> float | None:
    """Seconds of the longest step, if it is beyond the axis; otherwise None."""
    x, parts, top = _times(run)
    longest = float(np.sum(list(parts.values()), axis=0).max()) if len(x) else 0.0
    return longest if longest > top else None


def time_split(ax: Axes, run: RunMetrics) -> None:
    """Draws how the time of each step is divided."""
    x, parts, top = _times(run)
    if len(x) == 1:  # an area needs two points
        x, parts = np.array([x[0] - 0.4, x[0] + 0.4]), {name: np.repeat(part, 2) for name, part in parts.items()}
    if len(x):
        ax.stackplot(x, *parts.values(), labels=list(parts), colors=LIGHT.series, alpha=0.85, lw=0)
        ax.set_ylim(0, top)
