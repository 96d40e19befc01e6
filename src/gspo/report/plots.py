"""Figures of one run, or of several runs on shared axes, from their metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gspo.report import marks
from gspo.report.chart import VERTICAL, Chart, ChartMark
from gspo.report.numbers import borders
from gspo.report.read import RunMetrics

EXACT = ("accuracy", "lr", "range")  # without noise, or few points: no running mean
SMOOTH_FROM = 150  # number of points from which a running mean is drawn over the raw line
SHARE = 2.0  # a larger value is a count, not a share or a reward of 0 and 1 with a small bonus
Keys = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Plot:
    """One figure, and how it is drawn."""

    name: str  # of its file
    title: str
    unit: str  # of the y axis
    caption: str  # `{labels}` in it stands for the labels of its lines
    keys: Keys = ()  # (metric, label) pairs. Of several runs only the first that they have is drawn
    scale: float = 1.0  # factor applied to the values
    log: bool = False  # the y axis is logarithmic
    top: float | None = None  # upper end of the y axis
    marks: Callable[[RunMetrics], list[ChartMark]] | None = None  # what is no line, for a single run
    only_marks: bool = False  # in place of the lines
    dots: bool = False  # points get dots and error bars
    prefix: str = ""  # every metric that begins with it becomes a key
    compare: str = ""  # title for several runs
    of_clip: str = ""  # added to the caption if the clip range is drawn

    def explained(self, runs: Sequence[RunMetrics]) -> str:
        """The caption for a figure of these runs."""
        if len(runs) > 1:
            return self.caption.format(labels=self.keys[0][1])
        run, words = runs[0], self.caption.format(labels="; ".join(label for _, label in self.keys))
        if self.of_clip and len(run.series("clip/epsilon")[0]):
            words += f" {self.of_clip}"
        if self.name == "time" and (most := marks.tallest(run)) is not None:
            words += f" The longest took {most:,.0f} s, which is beyond the figure."
        return words + (" Thin lines: a stage begins." if borders(run) else "")


CLIPS = (
    ("clip_ratio/tokens", "all"),
    ("clip_ratio/positive", "of those with A > 0"),
    ("clip_ratio/negative", "of those with A < 0"),
    ("clip_ratio/noise_only", "by rounding alone"),
)
PLOTS = (
    Plot("accuracy", "Held-out accuracy", "% of completions", "On prompts never trained on, with 95 % intervals.",
         (("eval/accuracy", ""),), 100, top=112, dots=True),
    Plot("reward", "Reward", "reward of a completion", "Mean over the completions of each step.",
         (("reward", "mean"),), marks=marks.reward_band),
    Plot("loss", "Loss", "nats per token", "Cross-entropy of the completions that are imitated.", (("loss", ""),)),
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
    Plot("range", "Clip range", "distance of ratio from 1", "It follows the share of clipped tokens (epsilon = "
         "auto) or the length of the completions (epsilon_length).",
         (("clip/epsilon", "below 1 (epsilon)"), ("clip/epsilon_high", "above 1 (epsilon_high)")), log=True),
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
          ("teacher/kl", "from the teacher"), ("mismatch/kl", "between sampler and trainer")), log=True,
         compare="KL from the sampler, within a step"),
    Plot("length", "Completion length", "tokens", "Mean over the completions of each step.",
         (("completions/mean_length", "mean"), ("stage/max_completion_length", "the stage's limit"))),
    Plot("truncated", "Truncated completions", "% of completions", "Completions cut off at a limit: of "
         "their length or, in an environment, of their turns.",
         (("completions/clipped_ratio", ""),), 100),
    Plot("no_signal", "Groups without a signal", "% of groups", "Groups whose completions all got the same reward: they "
         "teach nothing, unless a teacher or a critic does.", (("frac_reward_zero_std", ""),), 100, top=102),
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


def charts(runs: Sequence[RunMetrics]) -> list[Chart]:
    """Every figure that the runs have data for. Several runs share the axes, each in its own colour."""
    found = [_chart(plot, runs) for each in PLOTS if (plot := _with_keys(each, runs)) is not None]
    return [chart for chart in found if any(mark.style not in VERTICAL for mark in chart.marks)]


def _with_keys(plot: Plot, runs: Sequence[RunMetrics]) -> Plot | None:
    """The plot with the keys that the runs have; None if there is nothing to draw."""
    keys = plot.keys
    if plot.prefix:
        names = dict.fromkeys(k for run in runs for line in run.lines for k in line if k.startswith(plot.prefix))
        keys = tuple((k, k.removeprefix(plot.prefix).replace("_", " ")) for k in names)
    keys = tuple((k, label) for k, label in keys if any(len(run.series(k)[0]) for run in runs))
    if plot.name == "lost":  # only metrics that are not 0 throughout
        keys = tuple((k, label) for k, label in keys if any(run.series(k)[1].any() for run in runs))
    if plot.prefix == "reward/":
        keys = _alike(keys, runs, large=plot.name == "reward_counts") if len(keys) > 1 else ()
    fixed_range = plot.name == "range" and all(len(set(run.series(k)[1].tolist())) < 2 for run in runs for k, _ in keys)
    policy_loss = plot.name == "loss" and any(len(run.series("reward")[0]) for run in runs)  # tells nothing
    if not keys or fixed_range or policy_loss:
        return None
    lines = keys if len(runs) == 1 else keys[:1]  # several runs show only the first
    values = np.concatenate([run.series(k)[1] for run in runs for k, _ in lines])
    return replace(plot, keys=keys, log=plot.log and bool((values > 0).any()))


def _alike(keys: Keys, runs: Sequence[RunMetrics], large: bool) -> Keys:
    """Splits parts of the reward between two figures: counts would dwarf the others, so `large` has them alone."""
    counts = tuple(pair for pair in keys if any((np.abs(run.series(pair[0])[1]) > SHARE).any() for run in runs))
    others = tuple(pair for pair in keys if pair not in counts)
    if not others:
        return () if large else keys
    return counts if large else others


def _chart(plot: Plot, runs: Sequence[RunMetrics]) -> Chart:
    several = len(runs) > 1
    key, first_label = plot.keys[0]
    if several:
        lines = [(i, run, key, run.name) for i, run in enumerate(runs) if len(run.series(key)[0])]
    else:
        lines = [(i, runs[0], key, label) for i, (key, label) in enumerate(() if plot.only_marks else plot.keys)]
    drawn, windows = [], set()
    for line in lines:
        found, window = _line(plot, *line)
        drawn += found
        windows.add(window)
    if not several:
        drawn = [*(plot.marks(runs[0]) if plot.marks else ()), *drawn, *marks.stages(runs[0])]
    title = plot.compare if several and plot.compare else plot.title
    if plot.prefix and (several or len(plot.keys) == 1):
        title += f": {first_label}"
    bold = f"mean of {2 * max(windows) + 1} steps" if len(windows) == 1 else "running mean, where a thin line shows"
    return Chart(
        plot.name, title, plot.unit, plot.explained(runs), [mark for mark in drawn if len(mark.x)],
        x_note=f" (bold: {bold})" if any(windows) else "",
        log=plot.log,
        top=marks.times(runs[0])[2] if plot.name == "time" and not several else plot.top,
        margin=0.05 if plot.dots else 0.0,
        texts=marks.ends(runs[0]) if plot.name == "accuracy" and not several else (),
        legend=several,
    )  # fmt: skip


def _line(plot: Plot, number: int, run: RunMetrics, key: str, label: str) -> tuple[list[ChartMark], int]:
    """A line, with a running mean if it is long; and the half-width of the mean's window in points, 0 for none."""
    x, y = run.series(key)
    y = y * plot.scale
    if plot.log:
        x, y = x[y > 0], y[y > 0]
    drawn = marks.intervals(run, number) if plot.dots else []
    window = len(x) // 25 if len(x) >= SMOOTH_FROM and plot.name not in EXACT else 0
    if window:
        drawn.append(ChartMark("", x, y, None, number, "raw"))
        ones = np.ones(2 * window + 1)
        values = np.log(y) if plot.log else y  # geometric mean: on a logarithmic axis a spike would lift its whole window
        y = np.convolve(values, ones, mode="same") / np.convolve(np.ones(len(y)), ones, mode="same")
        y = np.exp(y) if plot.log else y
    dots = marks.lone(x, y, number, marks.MOST_DOTS if plot.dots else 1)
    return [*drawn, ChartMark(label, x, y, None, number), *dots], window
