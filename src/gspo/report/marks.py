"""What the figure of a single run shows besides its lines: labels of the ends, bands, the clip range, borders of stages."""

from __future__ import annotations

from typing import Any

import matplotlib.patheffects as effects
import numpy as np
from matplotlib.axes import Axes

from gspo.report.canvas import Theme
from gspo.report.read import TIMES, RunMetrics

INTERVAL = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
MOST_DOTS = 30  # up to this many evaluations get dots and error bars; more get a line and a band
SMOOTH_FROM = 150  # number of points from which a running mean is drawn over the raw line


def ends(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Labels the first and the last accuracy with their values."""
    x, y = run.series("eval/accuracy")
    steps, (_, *bars) = run.rows(INTERVAL)
    reach = {step: ends for step, *ends in zip(steps, *bars)}  # keeps the label clear of the error bar
    for i in {0, len(x) - 1} if len(x) else ():
        below = y[i] > 0.15 and (i == 0 or y[i] < y[0]) and not (i == 0 and y[-1] < y[0])
        low, high = reach.get(x[i], (y[i], y[i]))
        end = min(low, y[i]) if below else max(high, y[i])
        place: Any = {"xytext": (0, -6 if below else 6), "textcoords": "offset points", "ha": "center"}
        place["va"] = "top" if below else "bottom"
        clear = [effects.withStroke(linewidth=3, foreground=theme.paper)]  # an outline keeps it readable across the line
        ax.annotate(f"{100 * y[i]:.0f} %", (x[i], end * 100), color=theme.ink, weight="bold", path_effects=clear, **place)


def error_bars(ax: Axes, run: RunMetrics, colour: str) -> None:
    """Draws the intervals of accuracies, as a band if there are many."""
    x, (y, low, high) = run.rows(INTERVAL)
    if len(x) > MOST_DOTS:
        ax.fill_between(x, low * 100, high * 100, color=colour, alpha=0.18, lw=0)
    elif len(x):
        spread = np.maximum([y - low, high - y], 0) * 100
        ax.errorbar(x, y * 100, spread, fmt="none", ecolor=colour, elinewidth=1.3, capsize=2.5)


def _band(
    ax: Axes, x: np.ndarray, middle: np.ndarray, spread: np.ndarray, theme: Theme, label: str, share: bool = False
) -> None:
    """Draws a band of one `spread` about the middle. `share`: whether values are shares, so that it ends at 0 and 1."""
    low, high = middle - spread, middle + spread
    if share:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    ax.fill_between(x, low, high, color=theme.series[0], alpha=0.18, lw=0, label=label)


def between_0_and_1(mean: np.ndarray, spread: np.ndarray) -> bool:
    """Whether values with these means and standard deviations within groups can all lie between 0 and 1. The variance is
    then at most mean (1 - mean) (Bhatia and Davis), and its estimate from two values at most twice that.
    """
    return bool(((mean >= 0) & (mean <= 1)).all() and (spread**2 <= 2 * mean * (1 - mean) + 1e-9).all())


def reward_band(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Draws the spread of rewards within groups, and the guard's alarms."""
    x, (y, spread) = run.rows(("reward", "reward_std"))
    if len(x) > 1:
        share = all(0 <= reward <= 1 for reward in run.rewards) and between_0_and_1(y, spread)
        _band(ax, x, y, spread, theme, "± standard deviation within a group", share)
    steps, levels = run.series("guard/level")
    for i, step in enumerate(steps[levels == 2]):
        ax.axvspan(step - 0.5, step + 0.5, color=theme.series[1], alpha=0.25, lw=0, label="" if i else "guard: alarm")


def ratio_band(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Draws s - 1: its mean, a band of one standard deviation, and the clip range."""
    x, (mean, spread) = run.rows(("ratio/mean", "ratio/std"))
    mean = mean - 1
    ax.plot(x, mean, color=theme.series[0], lw=1.6 if len(x) < SMOOTH_FROM else 0.8, label="mean",
            marker="o" if len(x) == 1 else None)  # fmt: skip
    if len(x) > 1:
        _band(ax, x, mean, spread, theme, "± standard deviation")
    for key, sign, label in (("clip/epsilon", -1, "clip range"), ("clip/epsilon_high", 1, "")):
        if len(run.series(key)[1]):
            _limit(ax, run, key, sign, theme, label)


def _limit(ax: Axes, run: RunMetrics, key: str, sign: int, theme: Theme, label: str, log: bool = False) -> None:
    """Draws an end of the clip range: a straight line, or its value in each step if the range adapts."""
    steps, values = run.series(key)
    style: Any = {"color": theme.ink, "lw": 1.4, "ls": "--", "label": label}
    if len(set(values.tolist())) == 1:
        ax.axhline(sign * values[-1], **style)
    else:
        if log:
            steps, values = steps[values > 0], values[values > 0]
        ax.step(steps, sign * values, where="mid", **style)


def range_line(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Draws the clip range on a logarithmic axis."""
    if len(run.series("clip/epsilon")[1]):
        _limit(ax, run, "clip/epsilon", 1, theme, "clip range (epsilon)", log=True)


def stage_lines(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Draws a thin line where a stage begins."""
    for step in borders(run):
        ax.axvline(step - 0.5, color=theme.ink, lw=0.6, alpha=0.6, zorder=0)


def borders(run: RunMetrics) -> list[float]:
    """The steps at which a new stage begins."""
    steps, stages = run.series("stage")
    return [float(step) for step, before, stage in zip(steps[1:], stages, stages[1:]) if stage > before]


def _times(run: RunMetrics) -> tuple[np.ndarray, list[np.ndarray], list[str], float]:
    """Steps, the seconds of each part of them, the parts' names, and the top of the axis, which cuts off a few long steps
    that would flatten the rest.
    """
    parts = [(k, n) for k, n in TIMES if len(run.series(k)[0])]
    x, heights = run.rows([k for k, _ in parts])
    top = 1.25 * float(np.quantile(np.sum(heights, axis=0), 0.98)) if len(x) else 0.0
    return x, heights, [n for _, n in parts], top or 1.0


def tallest(run: RunMetrics) -> float | None:
    """Seconds of the longest step, if it is beyond the axis; otherwise None."""
    x, heights, _, top = _times(run)
    longest = float(np.sum(heights, axis=0).max()) if len(x) else 0.0
    return longest if longest > top else None


def time_split(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """Draws how the time of each step is divided."""
    x, heights, names, top = _times(run)
    if len(x) == 1:  # an area needs two points
        x, heights = np.array([x[0] - 0.4, x[0] + 0.4]), [np.repeat(h, 2) for h in heights]
    if len(x):
        ax.stackplot(x, heights, labels=names, colors=theme.series, alpha=0.85, lw=0)
        ax.set_ylim(0, top)
