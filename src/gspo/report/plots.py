"""Figures of one run, or of several runs on shared axes, from their run folders.

Reads only files, and imports only this package's modules from gspo. Each figure is drawn twice, for a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gspo.report import marks
from gspo.report.canvas import LIGHT, Theme, canvas, finish, save
from gspo.report.read import RunMetrics, read_run, run_names

EXACT = ("accuracy", "lr", "range")  # without noise, or few points: no running mean
SHARE = 2.0  # a larger value is a count, not a share or a reward of 0 and 1 with a small bonus
Keys = tuple[tuple[str, str], ...]
DASHES = ("-", "--", ":")


@dataclass(frozen=True)
class Plot:
    """One figure: its file name, title, unit of the y axis, a sentence about what it shows, and how it is drawn.

    Attributes:
        keys: (metric, label) pairs. If several runs are compared, only the first that they have is drawn.
        scale: Factor applied to the values.
        log: Whether the y axis is logarithmic.
        top: Upper end of the y axis.
        marks: Draws what is not a line of `keys` onto the axes of a single run.
        only_marks: Whether `marks` replaces the lines.
        dots: Whether points get dots and error bars.
        prefix: Every metric that begins with it becomes a key.
        compare: The title if several runs are compared.
        of_clip: Added to the caption if the clip range is drawn.
    """

    name: str
    title: str
    unit: str
    caption: str
    keys: Keys = ()
    scale: float = 1.0
    log: bool = False
    top: float | None = None
    marks: Callable[[Axes, RunMetrics, Theme], None] | None = field(default=None)
    only_marks: bool = False
    dots: bool = False
    prefix: str = ""
    compare: str = ""
    of_clip: str = ""

    def explained(self, runs: Sequence[RunMetrics]) -> str:
        """The caption for a figure of these runs. `{labels}` in it is replaced by the labels of its lines."""
        keys = self.keys if len(runs) == 1 else self.keys[:1]
        words = self.caption.format(labels="; ".join(label for _, label in keys))
        if len(runs) > 1:
            return words
        run = runs[0]
        if self.of_clip and len(run.series("clip/epsilon")[0]):
            words += f" {self.of_clip}"
        if self.name == "time" and (most := marks.tallest(run)) is not None:
            words += f" The longest took {most:,.0f} s, which is beyond the figure."
        return words + (" Thin lines: a stage begins." if marks.borders(run) else "")


@dataclass(frozen=True)
class Drawn:
    """A figure on disk, in both renderings."""

    name: str
    title: str
    caption: str
    light: Path
    dark: Path


CLIPS = (
    ("clip_ratio/tokens", "all"),
    ("clip_ratio/positive", "of those with A > 0"),
    ("clip_ratio/negative", "of those with A < 0"),
    ("clip_ratio/noise_only", "by rounding alone"),
)
PLOTS = (
    Plot("accuracy", "Held-out accuracy", "% of completions", "On prompts never trained on, with 95 % intervals.",
         (("eval/accuracy", ""),), 100, top=112, marks=marks.ends, dots=True),
    Plot("reward", "Reward", "reward of a completion", "Mean over the completions of each step.",
         (("reward", "mean"),), marks=marks.reward_band),
    Plot("loss", "Loss", "nats per token", "Cross-entropy of the completions that are imitated.", (("loss", ""),)),
    Plot("completions", "Kinds of completions", "% of completions", "Share of the sampled completions.", scale=100, top=102,
         prefix="completion/"),
    Plot("reward_parts", "Parts of the reward", "mean", "Mean of each reward function before it is weighted, or of "
         "what the environment measures.",
         prefix="reward/"),
    Plot("reward_counts", "Larger parts of the reward", "mean", "Those that are too large for the axis of the others.",
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
         (("ratio/std", "standard deviation"),), marks=marks.ratio_band, only_marks=True,
         compare="Spread of the ratio (standard deviation)"),
    Plot("noise", "Noise floor", "distance of ratio from 1", "The noise floor is the spread of the ratio before any update, "
         "from rounding alone.", of_clip="It should stay well below the clip range (dashed).", keys=
         (("ratio/noise_floor", "noise floor"), ("ratio/std", "spread after the updates")), log=True,
         marks=marks.range_line, compare="Noise floor"),
    Plot("entropy", "Entropy", "nats per token", "Mean entropy of the policy at the tokens it was trained on.",
         (("entropy", ""),)),
    Plot("kl", "KL divergence", "nats per token", "Mean divergence of the policy {labels}.",
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
         (("time/step", "whole step"),), marks=marks.time_split, only_marks=True),
    Plot("lost", "Left out", "count in a step", "Completions without a reward, groups dropped, updates skipped.",
         (("rollouts/failed", "completions without a reward"), ("groups/dropped", "dropped groups"),
          ("updates/skipped", "skipped updates"))),
)  # fmt: skip


def draw(run_dirs: Sequence[str | Path], out: str | Path | None = None) -> list[Drawn]:
    """Draws every figure that the runs have data for into `out` (default: figures/ of the first run).

    Several runs share the axes, each in its own colour; their files are called `compare-NAME.png`.
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
        drawn.append(Drawn(plot.name, plot.title, plot.explained(runs), *files))
    return drawn


def _with_keys(plot: Plot, runs: list[RunMetrics]) -> Plot | None:
    """The plot with the keys that the runs have; None if there is nothing to draw."""
    keys = plot.keys
    if plot.prefix:
        names = dict.fromkeys(k for run in runs for line in run.lines for k in line if k.startswith(plot.prefix))
        keys = tuple((k, k.removeprefix(plot.prefix).replace("_", " ")) for k in names)
    keys = tuple((k, label) for k, label in keys if any(len(run.series(k)[0]) for run in runs))
    if plot.name == "lost":  # only metrics that are not 0 throughout
        keys = tuple((k, label) for k, label in keys if any(run.series(k)[1].any() for run in runs))
    if plot.name == "range" and all(len(set(run.series(k)[1].tolist())) < 2 for run in runs for k, _ in keys):
        return None  # a fixed range
    policy_loss = plot.name == "loss" and any(len(run.series("reward")[0]) for run in runs)  # tells nothing
    if plot.prefix == "reward/":
        keys = _alike(keys, runs, large=plot.name == "reward_counts") if len(keys) > 1 else ()
    if not keys or policy_loss:
        return None
    lines = keys if len(runs) == 1 else keys[:1]  # several runs show only the first
    values = np.concatenate([run.series(k)[1] for run in runs for k, _ in lines])
    return Plot(**{**vars(plot), "keys": keys, "log": plot.log and bool((values > 0).any())})


def _alike(keys: Keys, runs: list[RunMetrics], large: bool) -> Keys:
    """Splits parts of the reward between two figures: counts would dwarf the others, so `large` has them alone."""
    most = {key: max(float(np.abs(run.series(key)[1]).max(initial=0.0)) for run in runs) for key, _ in keys}
    counts = [pair for pair in keys if most[pair[0]] > SHARE]
    if len(counts) == len(keys):
        return () if large else keys
    return tuple(counts) if large else tuple(pair for pair in keys if pair not in counts)


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
            marks.stage_lines(ax, runs[0], theme)
        title = plot.title if len(runs) == 1 else plot.compare or plot.title
        if plot.prefix and (len(runs) > 1 or len(plot.keys) == 1):
            title += f": {plot.keys[0][1]}"
        how: Any = {"log": plot.log, "top": plot.top, "zero": plot.scale == 100, "dots": plot.dots, "alone": len(runs) > 1}
        finish(figure, ax, title, plot.unit, **how)
        bold = f"mean of {2 * max(windows) + 1} steps" if len(windows) == 1 else "running mean, where a thin line shows"
        ax.set_xlabel(f"step (bold: {bold})" if any(windows) else "step")
    return figure


def _line(ax: Axes, plot: Plot, run: RunMetrics, key: str, label: str, colour: str, style: str = "-") -> int:
    """Draws a line, with a running mean if it is long. Returns the half-width of the mean's window in points, 0 for none."""
    x, y = run.series(key)
    y = y * plot.scale
    if plot.log:
        x, y = x[y > 0], y[y > 0]
    if plot.dots:
        marks.error_bars(ax, run, colour)
    window = len(x) // 25 if len(x) >= marks.SMOOTH_FROM and plot.name not in EXACT else 0
    if window:
        ax.plot(x, y, color=colour, lw=0.7, alpha=0.3)
        ones = np.ones(2 * window + 1)
        values = np.log(y) if plot.log else y  # geometric mean: on a logarithmic axis a spike would lift its whole window
        y = np.convolve(values, ones, mode="same") / np.convolve(np.ones(len(y)), ones, mode="same")
        y = np.exp(y) if plot.log else y
    dot = "o" if len(x) == 1 or (plot.dots and len(x) <= marks.MOST_DOTS) else None
    ax.plot(x, y, style, color=colour, lw=1.9, label=label, marker=dot, ms=5)
    return window
