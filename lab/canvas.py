"""The common look of the pictures in docs/ and lab/: size, colours for a light and a dark page, axes, legend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from gspo.report.chart import POWERS, short

SIZE = (4.8, 3.0)  # inches: small, so that the text is large on the page


@dataclass(frozen=True)
class Theme:
    """Colours of one rendering; `series` is safe for colour-blind readers."""

    paper: str
    ink: str
    faint: str
    series: tuple[str, ...]


LIGHT = Theme("#ffffff", "#24292f", "#d5dae0", ("#1a6fc4", "#d1570f", "#0b8f6c", "#9a4fb0", "#6b7280", "#b8860b"))
DARK = Theme("#171a20", "#d9dee5", "#3a414c", ("#62b0ff", "#ff9a5c", "#3fd0a6", "#d79bea", "#9aa4b2", "#e6c34d"))


@contextmanager
def canvas(theme: Theme) -> Iterator[tuple[Figure, Axes]]:
    """Yields an empty figure in the colours of `theme`. Draw and save it inside the context."""
    ink = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), theme.ink)
    paper = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), theme.paper)
    faint = dict.fromkeys(("axes.edgecolor", "grid.color"), theme.faint)
    fixed = {"font.size": 11, "font.family": "DejaVu Sans", "axes.axisbelow": True}
    with matplotlib.rc_context(ink | paper | faint | fixed):  # type: ignore[arg-type]
        figure = Figure(SIZE)
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
        ax.grid(True, axis="y", lw=0.7)
        yield figure, ax


def finish(figure: Figure, ax: Axes, title: str, unit: str, *, log: bool = False, top: float | None = None) -> None:
    """Sets the title, the unit of the y axis, few ticks, and a legend below the axes, off the data.

    Args:
        log: Whether the y axis is logarithmic.
        top: Upper end of the y axis.
    """
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(length=0)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    low, high = ax.get_xlim()
    if high - low < 1:  # one step
        ax.set_xlim((low + high) / 2 - 0.6, (low + high) / 2 + 0.6)
        ax.set_xticks([round((low + high) / 2)])
    ax.set_ylabel(_scale_y(ax, unit, log, top))
    ax.set_title(short(title), loc="left", weight="bold", fontsize=12.5, pad=9, y=1.0, parse_math=False)
    handles, labels = ax.get_legend_handles_labels()
    shown = [(h, short(label)) for h, label in zip(handles, labels) if label]
    rows = _legend(figure, shown) if len(shown) > 1 else 0
    # Fixed margins in inches, so that the axes of all figures look alike on the page, whatever their legends.
    width, height = SIZE[0], SIZE[1] + 0.21 * rows
    figure.set_size_inches(width, height)
    figure.subplots_adjust(0.92 / width, (0.58 + 0.21 * rows) / height, 1 - 0.15 / width, 1 - 0.4 / height)
    ax.yaxis.set_label_coords(-0.7 / (width - 1.07), 0.5)


def _legend(figure: Figure, shown: list[tuple[Any, str]]) -> int:
    """Draws the legend, in two columns if they fit. Returns its number of rows."""
    lines = [handle[0] if isinstance(handle, ErrorbarContainer) else handle for handle, _ in shown]
    broken = any(isinstance(line, Line2D) and line.get_linestyle() not in ("-", "None") for line in lines)
    length = 2.8 if broken else 1.6  # a marker hides the gaps of a short line
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0.04, 0.0), "borderaxespad": 0.3, "handlelength": length}
    for columns in (2, 1):
        figure.legends.clear()
        legend = figure.legend(*zip(*shown), frameon=False, fontsize=10, columnspacing=1.6, ncols=columns, **place)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name may contain dollar signs
        if legend.get_window_extent().x1 < figure.bbox.x1:
            break
    return -(-len(shown) // columns)


def _scale_y(ax: Axes, unit: str, log: bool, top: float | None) -> str:
    """Sets limits and ticks of the y axis, without long decimals. Returns its label."""
    if log:
        low, high = ax.dataLim.intervaly
        ax.set_ylim(10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) + 1e-9))
        ax.set_yscale("log")  # after the limits: for a single value matplotlib would warn
        ax.yaxis.set_major_locator(LogLocator(numticks=6))
        ax.yaxis.set_minor_locator(NullLocator())
        return unit
    if top is not None:
        ax.set_ylim(0, top)
    elif ax.dataLim.intervaly[0] >= 0:
        ax.set_ylim(bottom=0)
    ax.yaxis.set_major_locator(MaxNLocator(5, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10]))
    largest = max(map(abs, ax.get_ylim()))
    power = math.floor(math.log10(largest)) if 0 < largest < 0.01 else 0
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{round(v / 10**power, 6):,.10g}".replace("-", "−")))
    return f"{unit}, 10{f'{power}'.translate(POWERS)}" if power else unit
