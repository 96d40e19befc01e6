"""Figures of one run, or of several in the same axes, from what their run folders hold.

Reads files only, and imports nothing else of gspo but their reader and the canvas. Each figure is drawn twice, for a light
and for a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gspo.report.canvas import LIGHT, Theme, canvas, finish, save
from gspo.report.read import TIMES, RunMetrics, read_run, run_names

INTERVAL = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
MOST_DOTS = 30  # evaluations that get a dot and an error bar each; more get a line and a band
EXACT = ("accuracy", "lr", "range")  # without noise, or few: no running mean
DASHES = ("-", "--", ":")
SMOOTH_FROM = 150  # points from which a running mean is drawn over the raw line


@dataclass(frozen=True)
class Plot:
    """One figure: its file name, title, unit of the y axis, what it shows in a sentence, and how it is drawn.

    `keys` are (metric, label) pairs; the first that a run has stands for the figure when several runs are
    compared. `scale` multiplies the values. `marks` draws onto the axes of a single run what is not a line of
    `keys` (`only_marks`: instead of them). `prefix` takes every metric that begins so as a key. `compare` is
    the title when several runs are compared. `of_clip` goes on with the caption where the clip range is drawn.
    """

    name: str
    title: str
    unit: str
    caption: str
    keys: tuple[tuple[str, str], ...] = ()
    scale: float = 1.0
    log: bool = False
    top: float | None = None
    marks: Callable[[Axes, RunMetrics, Theme], None] | None = field(default=None)
    only_marks: bool = False
    dots: bool = False
    prefix: str = ""
    compare: str = ""
    of_clip: str = ""


@dataclass(frozen=True)
class Drawn:
    """A figure on the disk, in both renderings."""

    name: str
    title: str
    caption: str
    light: Path
    dark: Path


def _ends(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """The first and the last accuracy in figures."""
    x, y = run.series("eval/accuracy")
    steps, (_, *bars) = run.rows(INTERVAL)
    reach = {step: ends for step, *ends in zip(steps, *bars)}  # the label stands clear of the error bar
    for i in {0, len(x) - 1} if len(x) else ():
        below = y[i] > 0.15 and (i == 0 or y[i] < y[0]) and not (i == 0 and y[-1] < y[0])
        low, high = reach.get(x[i], (y[i], y[i]))
        end = min(low, y[i]) if below else max(high, y[i])
        place: Any = {"xytext": (0, -6 if below else 6), "textcoords": "offset points", "ha": "center"}
        place["va"] = "top" if below else "bottom"
        ax.annotate(f"{100 * y[i]:.0f} %", (x[i], end * 100), color=theme.ink, weight="bold", **place)


def _error_bars(ax: Axes, run: RunMetrics, colour: str) -> None:
    x, (y, low, high) = run.rows(INTERVAL)
    if len(x) > MOST_DOTS:
        ax.fill_between(x, low * 100, high * 100, color=colour, alpha=0.18, lw=0)
    elif len(x):
        spread = np.maximum([y - low, high - y], 0) * 100
        ax.errorbar(x, y * 100, spread, fmt="none", ecolor=colour, elinewidth=1.3, capsize=2.5)


def _band(
    ax: Axes, x: np.ndarray, middle: np.ndarray, spread: np.ndarray, theme: Theme, label: str, share: bool = False
) -> None:
    """One `spread` about the middle. share: the values lie between 0 and 1, and so does the band."""
    low, high = middle - spread, middle + spread
    if share:
        low, high = np.maximum(low, 0.0), np.minimum(high, 1.0)
    ax.fill_between(x, low, high, color=theme.series[0], alpha=0.18, lw=0, label=label)


def _between_0_and_1(mean: np.ndarray, spread: np.ndarray) -> bool:
    """Whether values with these means and standard deviations within groups can all lie between 0 and 1: the variance is
    then at most mean (1 - mean) (Bhatia and Davis), and its estimate from two values at most twice that.
    """
    return bool(((mean >= 0) & (mean <= 1)).all() and (spread**2 <= 2 * mean * (1 - mean) + 1e-9).all())


def _reward_band(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    x, (y, spread) = run.rows(("reward", "reward_std"))
    if len(x) > 1:
        share = all(0 <= reward <= 1 for reward in run.rewards) and _between_0_and_1(y, spread)
        _band(ax, x, y, spread, theme, "± standard deviation within a group", share)
    steps, levels = run.series("guard/level")
    for i, step in enumerate(steps[levels == 2]):
        ax.axvspan(step - 0.5, step + 0.5, color=theme.series[1], alpha=0.25, lw=0, label="" if i else "guard: alarm")


def _ratio_band(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """s - 1: its mean, one standard deviation about it, and the clip range."""
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
    """An end of the clip range: a line across, or where the range adapts, that of each step."""
    steps, values = run.series(key)
    style: Any = {"color": theme.ink, "lw": 1.4, "ls": "--", "label": label}
    if len(set(values.tolist())) == 1:
        ax.axhline(sign * values[-1], **style)
    else:
        if log:
            steps, values = steps[values > 0], values[values > 0]
        ax.step(steps, sign * values, where="mid", **style)


def _range_line(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    if len(run.series("clip/epsilon")[1]):
        _limit(ax, run, "clip/epsilon", 1, theme, "clip range (epsilon)", log=True)


def _stage_lines(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    """A thin line where a stage begins."""
    for step in borders(run):
        ax.axvline(step - 0.5, color=theme.ink, lw=0.6, alpha=0.6, zorder=0)


def borders(run: RunMetrics) -> list[float]:
    """The first steps of the stages of a run."""
    steps, stages = run.series("stage")
    return [float(step) for step, before, stage in zip(steps[1:], stages, stages[1:]) if stage > before]


def _time_split(ax: Axes, run: RunMetrics, theme: Theme) -> None:
    parts = [(k, n) for k, n in TIMES if len(run.series(k)[0])]
    x, heights = run.rows([k for k, _ in parts])
    if len(x) == 1:  # an area needs two points
        x, heights = np.array([x[0] - 0.4, x[0] + 0.4]), [np.repeat(h, 2) for h in heights]
    if len(x):
        ax.stackplot(x, heights, labels=[n for _, n in parts], colors=theme.series, alpha=0.85, lw=0)
        ax.set_ylim(0, 1.25 * float(np.quantile(np.sum(heights, axis=0), 0.98)) or 1.0)


CLIPS = (
    ("clip_ratio/tokens", "all"),
    ("clip_ratio/positive", "of those with A > 0"),
    ("clip_ratio/negative", "of those with A < 0"),
    ("clip_ratio/numerics", "by rounding alone"),
)
PLOTS = (
    Plot("accuracy", "Held-out accuracy", "% of completions", "On prompts never trained on, with 95 % intervals.",
         (("eval/accuracy", ""),), 100, top=112, marks=_ends, dots=True),
    Plot("reward", "Reward", "reward of a completion", "Mean over the completions of each step.",
         (("reward", "mean"),), marks=_reward_band),
    Plot("loss", "Loss", "nats per token", "Cross-entropy of the completions that are imitated.", (("loss", ""),)),
    Plot("completions", "Kinds of completions", "% of completions", "Share of the sampled completions.", scale=100, top=102,
         prefix="completion/"),
    Plot("reward_parts", "Parts of the reward", "mean", "Mean of each reward function before it is weighted, or of "
         "what the environment measures.",
         prefix="reward/"),
    Plot("clip", "Clipped tokens", "% of tokens", "Tokens whose ratio (or that of their completion) is clipped. They "
         "give no gradient or, where the algorithm caps weights, less.", CLIPS, 100),
    Plot("experts", "Experts that changed", "%", "How much of the routing changed during a step: the policy's experts are "
         "compared with pi_old's for the same tokens.",
         (("moe/volatility", "of the choices"), ("moe/tokens_changed", "of the tokens, in at least one layer"),
          ("moe/overruled", "of the choices, overruled by replay")), 100),
    Plot("load", "Load of the busiest expert", "% more than the average", "How many more tokens the busiest expert gets "
         "than the average expert. 0 means that all get the same number. Mean over the layers.",
         (("moe/max_violation", ""),), 100),
    Plot("range", "Clip range", "distance of ratio from 1", "It adapts, to keep the share of clipped tokens near its "
         "target.", (("clip/epsilon", "below 1 (epsilon)"), ("clip/epsilon_high", "above 1 (epsilon_high)")), log=True),
    Plot("ratio", "Ratio and clip range", "ratio − 1", "Importance ratio (of whole completions for sequence-level "
         "algorithms).", of_clip="Only what lies outside the clip range can be clipped.", keys=
         (("ratio/std", "standard deviation"),), marks=_ratio_band, only_marks=True,
         compare="Spread of the ratio (standard deviation)"),
    Plot("noise", "Noise floor", "distance of ratio from 1", "The noise floor is the spread of the ratio before any update, "
         "from rounding alone.", of_clip="It should stay well below the clip range (dashed).", keys=
         (("ratio/noise_floor", "noise floor"), ("ratio/std", "spread after the updates")), log=True,
         marks=_range_line, compare="Noise floor"),
    Plot("entropy", "Entropy", "nats per token", "Mean entropy of the policy at the tokens it was trained on.",
         (("entropy", ""),)),
    Plot("kl", "KL divergence", "nats per token", "How far the policy has moved.",
         (("kl", "from the sampler, within a step"), ("kl_ref", "from the reference model"),
          ("mismatch/kl", "between sampler and trainer")), log=True,
         compare="KL from the sampler, within a step"),
    Plot("length", "Completion length", "tokens", "Mean over the completions of each step.",
         (("completions/mean_length", "mean"), ("stage/max_completion_length", "the stage's limit"))),
    Plot("truncated", "Truncated completions", "% of completions", "Completions cut off at a limit: of "
         "their length or, in an environment, of their turns.",
         (("completions/clipped_ratio", ""),), 100),
    Plot("no_signal", "Groups without a signal", "% of groups", "Groups whose completions all got the same reward: they "
         "teach nothing.", (("frac_reward_zero_std", ""),), 100, top=102),
    Plot("queries", "Queries", "queries", "Queries that are trained on, that a refresh has dropped, and that were never "
         "sampled.", (("queries/active", "active"), ("queries/resting", "dropped"), ("queries/unseen", "unseen"))),
    Plot("grad_norm", "Gradient norm", "L2 norm", "Before gradient clipping.", (("grad_norm", ""),)),
    Plot("lr", "Learning rate", "learning rate", "At the end of each step.", (("lr", ""),)),
    Plot("throughput", "Throughput", "tokens per second", "Tokens of a step divided by its time.",
         (("tokens_per_second", ""),)),
    Plot("time", "Time of a step", "seconds", "What the time of a step goes into, without evaluation.",
         (("time/step", "whole step"),), marks=_time_split, only_marks=True),
    Plot("lost", "Left out", "count in a step", "Completions without a reward, groups dropped, updates skipped.",
         (("rollouts/failed", "completions without a reward"), ("groups/dropped", "dropped groups"),
          ("updates/skipped", "skipped updates"))),
)  # fmt: skip


def draw(run_dirs: Sequence[str | Path], out: str | Path | None = None) -> list[Drawn]:
    """Draw every figure that the runs have data for, in `out` (default: figures/ of the first run).

    Several runs share the axes, each with a colour of its own; their files are called `compare-NAME.png`.
    """
    runs = [read_run(folder, name) for folder, name in zip(run_dirs, run_names(run_dirs))]
    out = Path(out) if out is not None else Path(run_dirs[0]) / "figures"
    out.mkdir(parents=True, exist_ok=True)
    drawn = []
    for each in PLOTS:
        plot = _with_keys(each, runs)
        if plot is None:
            continue
        stem = plot.name if len(runs) == 1 else f"compare-{plot.name}"
        files = (out / f"{stem}.png", out / f"{stem}-dark.png")
        save(_draw_one(plot, runs, LIGHT), *files)
        marked = len(runs) == 1 and len(runs[0].series("clip/epsilon")[0])
        caption = f"{plot.caption} {plot.of_clip}" if plot.of_clip and marked else plot.caption
        caption += " Thin lines: a stage begins." if len(runs) == 1 and borders(runs[0]) else ""
        drawn.append(Drawn(plot.name, plot.title, caption, *files))
    return drawn


def _with_keys(plot: Plot, runs: list[RunMetrics]) -> Plot | None:
    """The plot with the keys that the runs have, or None where there is nothing to draw."""
    keys = plot.keys
    if plot.prefix:
        names = dict.fromkeys(k for run in runs for line in run.lines for k in line if k.startswith(plot.prefix))
        keys = tuple((k, k.removeprefix(plot.prefix).replace("_", " ")) for k in names)
    keys = tuple((k, label) for k, label in keys if any(len(run.series(k)[0]) for run in runs))
    if plot.name == "lost":  # nothing lost, nothing to see
        keys = tuple((k, label) for k, label in keys if any(run.series(k)[1].any() for run in runs))
    if plot.name == "range" and all(len(set(run.series(k)[1].tolist())) < 2 for run in runs for k, _ in keys):
        return None  # it was fixed
    policy_loss = plot.name == "loss" and any(len(run.series("reward")[0]) for run in runs)  # says nothing
    if not keys or policy_loss or (plot.name == "reward_parts" and len(keys) < 2):
        return None
    values = np.concatenate([run.series(k)[1] for run in runs for k, _ in keys])
    return Plot(**{**vars(plot), "keys": keys, "log": plot.log and bool((values > 0).any())})


def _draw_one(plot: Plot, runs: list[RunMetrics], theme: Theme) -> Figure:
    with canvas(theme) as (figure, ax):
        if len(runs) == 1:
            lines = [] if plot.only_marks else [*enumerate((runs[0], key, label) for key, label in plot.keys)]
        else:
            key = plot.keys[0][0]
            lines = [(i, (run, key, run.name)) for i, run in enumerate(runs) if len(run.series(key)[0])]
        windows = {
            _line(ax, plot, *line, theme.series[i % len(theme.series)], DASHES[i // len(theme.series) % len(DASHES)])
            for i, line in lines
        }
        if len(runs) == 1 and plot.marks is not None:
            plot.marks(ax, runs[0], theme)
        if len(runs) == 1:
            _stage_lines(ax, runs[0], theme)
        title = plot.title if len(runs) == 1 else plot.compare or plot.title
        if plot.prefix and (len(runs) > 1 or len(plot.keys) == 1):
            title += f": {plot.keys[0][1]}"
        how: Any = {"log": plot.log, "top": plot.top, "zero": plot.scale == 100, "dots": plot.dots, "alone": len(runs) > 1}
        finish(figure, ax, title, plot.unit, **how)
        bold = f"mean of {2 * max(windows) + 1} steps" if len(windows) == 1 else "running mean, where a thin line shows"
        ax.set_xlabel(f"step (bold: {bold})" if any(windows) else "step")
    return figure


def _line(ax: Axes, plot: Plot, run: RunMetrics, key: str, label: str, colour: str, style: str = "-") -> int:
    """A line, and its running mean where it is long. Returns the points on either side that this takes in, 0 for none."""
    x, y = run.series(key)
    y = y * plot.scale
    if plot.log:
        x, y = x[y > 0], y[y > 0]
    if plot.dots:
        _error_bars(ax, run, colour)
    window = len(x) // 25 if len(x) >= SMOOTH_FROM and plot.name not in EXACT else 0
    if window:
        ax.plot(x, y, color=colour, lw=0.7, alpha=0.3)
        ones = np.ones(2 * window + 1)
        values = np.log(y) if plot.log else y  # on a logarithmic axis one spike would lift all of its window
        y = np.convolve(values, ones, mode="same") / np.convolve(np.ones(len(y)), ones, mode="same")
        y = np.exp(y) if plot.log else y
    dot = "o" if len(x) == 1 or (plot.dots and len(x) <= MOST_DOTS) else None
    ax.plot(x, y, style, color=colour, lw=1.9, label=label, marker=dot, ms=5)
    return window
