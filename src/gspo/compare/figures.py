"""The figures of a study: one line per variant, with a band from the lowest seed to the highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gspo.report.chart import Chart, ChartMark
from gspo.report.read import RunMetrics

GRID = 120  # maximum points per line
FLOOR = 1e-5  # lowest value on logarithmic axes
PERCENT = "%"
# name, title, unit, x axis, metric, logarithmic, caption
CURVES = (
    ("reward", "Reward", "reward", "step", "reward", False, "Mean reward of the training batches against steps"),
    ("reward-tokens", "Reward, by tokens", "reward", "tokens_total", "reward", False, "The same against sampled tokens"),
    ("reward-seconds", "Reward, by time", "reward", "seconds", "reward", False,
     "The same against the time of a cell's steps"),
    ("accuracy", "Held-out accuracy", PERCENT, "step", "eval/accuracy", False, "On the prompts that each cell holds out"),
    ("clipped", "Clipped tokens", PERCENT, "step", "clip_ratio/tokens", True,
     "Tokens whose ratio, or that of their completion, is clipped"),
    ("volatility", "Routing volatility", PERCENT, "step", "moe/volatility", True,
     "Choices of an expert that are others after a step's updates"),
    ("entropy", "Entropy", "nats", "step", "entropy", False, "Mean entropy at the sampled tokens"),
    ("grad-norm", "Gradient norm", "norm", "step", "grad_norm", True, "Before it is clipped"),
)  # fmt: skip
NAMES = {"step": "step", "tokens_total": "sampled tokens", "seconds": "seconds"}


def points(run: RunMetrics, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions on the axis `x` and values of the metric `y`."""
    if x == "step":
        return run.series(y)
    if x == "seconds":
        steps, times = run.series("time/step")
        here, (_, values) = run.rows(("time/step", y))
        return np.cumsum(times)[np.isin(steps, here)], values
    _, (at, values) = run.rows((x, y))
    return at, values


def band(runs: Sequence[RunMetrics], x: str, y: str, log: bool) -> tuple[np.ndarray, ...] | None:
    """Grid, mean (geometric with `log`), minimum and maximum over the runs, where all have values; None if one has none."""
    lines = [points(run, x, y) for run in runs]
    if not lines or any(len(at) == 0 for at, _ in lines):
        return None
    begin, end = max(at[0] for at, _ in lines), min(at[-1] for at, _ in lines)
    grid = np.linspace(begin, max(begin, end), min(GRID, max(len(at) for at, _ in lines)))
    values = np.stack([np.interp(grid, at, line) for at, line in lines])
    if not log:
        return grid, values.mean(0), values.min(0), values.max(0)
    values = np.maximum(values, FLOOR)
    return grid, np.exp(np.log(values).mean(0)), values.min(0), values.max(0)


def setting_charts(runs: Mapping[str, Sequence[RunMetrics]]) -> list[Chart]:
    """The figures of one setting. `runs`: by variant."""
    charts = []
    for name, title, unit, x, y, log, caption in CURVES:
        bands = {variant: curve for variant, each in runs.items() if (curve := band(each, x, y, log)) is not None}
        if not bands or (log and all((curve[1] <= FLOOR).all() for curve in bands.values())):
            continue
        scale = 100.0 if unit == PERCENT else 1.0
        marks = []
        for i, (variant, (grid, *values)) in enumerate(bands.items()):
            mean, low, high = (scale * each for each in values)
            marks += [ChartMark("", grid, high, low, i, "band")] if len(bands) <= 6 else []
            marks.append(ChartMark(variant, grid, mean, None, i))
        words = f"{caption}. Band: from the lowest seed to the highest, as far as all seeds have values."
        if log and any((low <= FLOOR).any() for _, _, low, _ in bands.values()):
            words += f" What is below {FLOOR * scale:g}{' %' * (scale > 1)} stands there."
        charts.append(Chart(name, title, unit, words, marks, x_label=NAMES[x], log=log))
    return charts
