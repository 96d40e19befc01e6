"""The pictures of docs/performance.md, from the figures of results.json: for a light and for a dark page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from readings import Figure
from tables import ROOT

sys.path.append(str(Path(__file__).resolve().parents[1]))
from canvas import DARK, LIGHT, Theme, canvas, finish

IMAGES = ROOT / "docs" / "images"
Figures = dict[str, dict[str, Figure]]  # by group and name
AGAINST = ("padded rows", "TRL", "TRL, torch_compile", "generate")
GOALS = {"dense, P 512 R 64 G 8": 4.0, "mixture, P 512 R 64 G 8": 3.0, "chain: gspo": 2.0}  # by row
SAMPLING_GOAL = 2.0
SIZES = {"tokens": "tokens", "group": "completions to a prompt", "experts": "experts"}
HEADS = {"full": "all logits", "chunks": "checkpointed chunks", "ours": "gspo"}
Row = tuple[str, dict[str, Figure], float | None]  # its name, figures by what they are against, and the goal


def rows(figures: Figures) -> Iterator[tuple[str, list[Row]]]:
    """The picture of ratios by heading."""
    update, trl = figures.get("update", {}), figures.get("update_trl", {})
    names = dict.fromkeys([*update, *(name.partition(" against ")[0] for name in trl)])
    updates: dict[str, dict[str, Figure]] = {name: {} for name in names}
    for name, numbers in update.items():
        updates[name]["padded rows"] = numbers
    for name, numbers in trl.items():
        own, _, opponent = name.partition(" against ")
        updates[own][opponent] = numbers
    yield "An update", [(name, by, GOALS.get(name)) for name, by in updates.items()]
    steps: dict[str, dict[str, Figure]] = {}
    for name, numbers in figures.get("rollout_step", {}).items():
        own, _, opponent = name.partition(" against ")
        steps.setdefault(own, {})[opponent] = numbers
    yield "A rollout step", [(name, by, GOALS.get(name)) for name, by in steps.items()]
    sampled: dict[str, dict[str, Figure]] = {}
    for name, numbers in figures.get("sampling", {}).items():
        if name.startswith("embedded, "):
            sampled[name.removeprefix("embedded, ")] = {"generate": numbers}
    yield "Sampling", [(name, by, SAMPLING_GOAL) for name, by in sampled.items()]


def ratios(theme: Theme, figures: Figures) -> Picture:
    """Every ratio with its interval, the line at 1 and the goals."""
    with canvas(theme) as (picture, ax):
        labels, at, used = [], 0.0, set()
        for heading, group in rows(figures):
            if not group:
                continue
            ax.text(-0.02, at, heading, transform=ax.get_yaxis_transform(), ha="right", va="center", weight="bold")
            for name, by, aim in group:
                at += 1
                labels.append((at, name))
                if aim is not None:
                    ax.plot([aim, aim], [at - 0.42, at + 0.42], color=theme.ink, lw=2.2, zorder=1)
                for opponent, numbers in by.items():
                    place = AGAINST.index(opponent)
                    used.add(place)
                    y = at + (0.0 if len(by) == 1 else 0.25 * (list(by).index(opponent) - (len(by) - 1) / 2))
                    ax.plot(
                        [numbers["low"], numbers["high"]], [y, y], color=theme.series[place], lw=1.8, solid_capstyle="round"
                    )
                    ax.plot(numbers["value"], y, "o", color=theme.series[place], ms=5)
            at += 1.5
        ax.axvline(1, color=theme.ink, lw=1)
        ax.set_yticks([y for y, _ in labels], [text for _, text in labels], fontsize=9.5)
        ax.set_ylim(at - 0.6, -0.8)
        ax.set_xscale("log")
        plain_ticks(ax)
        bare(ax)
        ax.set_xlabel("times as fast, interval of the median", fontsize=10)
        handles = [
            Line2D([], [], color=theme.series[i], marker="o", ms=5, label=f"against {AGAINST[i]}") for i in sorted(used)
        ]
        handles.append(Line2D([], [], color=theme.ink, lw=2.2, marker="", label="goal"))
        picture.legend(handles=handles, frameon=False, fontsize=9.5, ncols=2, loc="lower left", bbox_to_anchor=(0.02, 0.0))
        legend = 0.22 * -(-len(handles) // 2)
        height = 0.27 * at + 0.75 + legend
        picture.set_size_inches(7.6, height)
        picture.subplots_adjust(0.385, (0.65 + legend) / height, 0.98, 0.995)
    return picture


def plain_ticks(ax: Axes) -> None:
    """Whole numbers and halves on a logarithmic x axis."""
    ax.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 3, 4, 6, 8, 12, 16]))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def bare(ax: Axes) -> None:
    """No frame, and a grid across the values."""
    ax.tick_params(length=0)
    ax.grid(True, axis="x", lw=0.7)
    ax.grid(False, axis="y")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def growth(theme: Theme, figures: Figures) -> Picture:
    """Seconds and GiB against what grows, on logarithmic axes, each with its slope."""
    scaling = figures.get("scaling", {})
    with canvas(theme) as (picture, ax):
        picture.delaxes(ax)
        kinds = [("seconds", "", 0)] + ([("GiB", ", memory", 1)] if any("memory" in name for name in scaling) else [])
        axes = picture.subplots(len(kinds), len(SIZES), sharey="row", squeeze=False)
        for line, (unit, suffix, colour) in zip(axes, kinds):
            for ax, (name, label) in zip(line, SIZES.items()):
                if name + suffix in scaling:
                    curve(ax, scaling[name + suffix], unit, theme.series[colour])
                ax.tick_params(length=0, labelsize=9, labelleft=ax is line[0])
                ax.set_xlabel(label, fontsize=10)
            line[0].set_ylabel(unit, fontsize=10)
        height = 0.2 + 2.3 * len(kinds)
        picture.set_size_inches(7.6, height)
        picture.subplots_adjust(0.09, 0.5 / height, 0.985, 1 - 0.3 / height, wspace=0.1, hspace=0.48)
    return picture


def curve(ax: Axes, numbers: Figure, unit: str, colour: str) -> None:
    """A cost by size with its slope, both axes logarithmic."""
    x = sorted(map(int, numbers[unit]))
    ax.loglog(x, [numbers[unit][str(size)] for size in x], color=colour, marker="o", ms=5, lw=1.9)
    title = f"slope {numbers['value']:z.2f}, {numbers['low']:z.2f} to {numbers['high']:z.2f}"
    ax.set_title(title.replace("-", "−"), loc="left", fontsize=10)
    ax.xaxis.set_major_locator(FixedLocator(x if len(x) < 5 else x[::2]))
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    for axis, form in ((ax.xaxis, "{:,.0f}"), (ax.yaxis, "{:g}")):
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _, form=form: form.format(value)))
    ax.margins(0.12, 0.25)
    ax.grid(True, lw=0.7)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def memory(theme: Theme, figures: Figures) -> Picture:
    """GiB of the log-probabilities by variant and number of tokens."""
    by_tokens: dict[int, dict[str, Figure]] = {}
    for name, numbers in figures.get("head", {}).items():
        variant, _, tokens = name.partition(", ")
        by_tokens.setdefault(int(tokens.split()[0]), {})[variant] = numbers
    with canvas(theme) as (picture, ax):
        at = np.arange(len(by_tokens))
        for i, (variant, label) in enumerate(HEADS.items()):
            for x, by in zip(at, by_tokens.values()):
                place = x + 0.28 * (i - 1)
                if variant in by:
                    peak = by[variant]["GiB"]
                    ax.bar(place, peak, 0.25, color=theme.series[i])
                    ax.text(place, peak, f"{peak:.2f}", ha="center", va="bottom", fontsize=9)
                elif variant == "full" and all(numbers["against"] != "full" for numbers in by.values()):
                    ax.text(place, 0, " does not fit", rotation=90, ha="center", va="bottom", fontsize=9)
            if any(variant in by for by in by_tokens.values()):
                ax.bar(0, 0, color=theme.series[i], label=label)
        finish(picture, ax, "Peak above hidden states and weight", "GiB")
        ax.margins(y=0.12)
        ax.set_xticks(at, [f"{tokens:,} tokens" for tokens in by_tokens])
        ax.set_xlim(-0.6, len(by_tokens) - 0.4)
    return picture


PICTURES: dict[str, tuple[str, Callable[[Theme, Figures], Picture]]] = {
    "performance-ratios": ("update", ratios),
    "performance-growth": ("scaling", growth),
    "performance-memory": ("head", memory),
}


def draw(figures: Figures, folder: Path = IMAGES) -> list[Path]:
    """Draws what there are figures for; returns the files."""
    paths: list[Path] = []
    for name, (group, of) in PICTURES.items():
        if figures.get(group):
            for theme, path in ((LIGHT, folder / f"{name}.png"), (DARK, folder / f"{name}-dark.png")):
                of(theme, figures).savefig(path, facecolor=theme.paper)
                paths.append(path)
    return paths
