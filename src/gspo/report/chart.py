"""A figure as SVG: where its lines, ticks and legend are, and the values that the page shows under the pointer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gspo.report.judgements import Judgement
from gspo.safe import visible

WIDTH, HEIGHT, TOP, RIGHT = 380, 145, 46, 12  # of the figure; of its axes; above them; right of them. In pixels
CHARACTER = 6.6  # width of a usual one
LONGEST = 42  # characters of a label in a legend
MOST_POINTS = 400  # drawn of a line
SERIES, DASHES = 6, 4  # colours, and kinds of dashes
POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
HOVERED, VERTICAL = ("line", "area", "bars"), ("stage", "alarm")


class ChartMark(NamedTuple):
    """A line or band of a figure. Its style is one of chart.css, and decides how it is drawn."""

    label: str  # in the legend; "" for none
    x: np.ndarray  # [n]
    y: np.ndarray  # [n]; not used for vertical lines
    low: np.ndarray | None = None  # [n], the lower edge of a band, or the lower ends of bars
    colour: int | None = 0  # the number of its series; None: that of the text
    style: str = "line"


class Chart(NamedTuple):
    """A figure: what it shows, in units of its axes."""

    name: str
    title: str
    unit: str
    caption: str
    marks: Sequence[ChartMark]
    x_label: str = "step"
    x_note: str = ""  # after the label
    names: Sequence[str] = ()  # of the places 0, 1, 2, ... on the x axis
    judgement: Judgement | None = None
    log: bool = False  # the y axis is logarithmic: all values must be positive
    top: float | None = None  # upper end of the y axis
    margin: float = 0.0  # space beside the outermost points, as a share of the width
    texts: Sequence[tuple[float, float, bool, str]] = ()  # x, y, whether below the point, text
    legend: bool = False  # even of a single line


def layout(chart: Chart) -> dict[str, Any]:
    """The values of templates/chart.svg."""
    stacked = [mark.y for mark in chart.marks if mark.style == "area"]  # the edges of one are those of the next
    marks = [_thinned(mark, stacked[-1] if mark.style == "area" else mark.y) for mark in chart.marks]
    low, high = _y_range(chart, marks)
    rows = [(share, text) for share, text in _y_ticks(low, high, chart.log) if 0 <= share <= 1]
    left = 8 + CHARACTER * max((len(text) for _, text in rows), default=1)
    width = WIDTH - RIGHT - left
    first, last = (float(end(end(mark.x) for mark in marks)) for end in (min, max))
    first, last = (first - 0.6, last + 0.6) if first == last else (first, last)
    pad = chart.margin * (last - first)
    first, last = first - pad, last + pad

    def x_of(values: Any) -> Any:
        return (np.asarray(values) - first) / (last - first) * width

    def y_of(values: Any) -> Any:
        values = np.log10(values) if chart.log else np.asarray(values)
        return (1 - np.clip((values - low) / (high - low), 0, 1)) * HEIGHT

    places = list(range(len(chart.names))) or ticks(first, last, 6, whole=True)
    columns = list(zip(places, chart.names or map(number, places)))
    legend = [(visible(mark.label), _css(mark)) for mark in marks if mark.label]
    legend = legend if len(legend) > 1 or chart.legend else []
    beside = 2 if all(len(label) <= 22 for label, _ in legend) else 1
    data = {
        "x": [first, last], "y": [low, high], "log": chart.log, "label": chart.x_label, "names": chart.names,
        "lines": [_values(mark) for mark in marks if mark.style in HOVERED],
    }  # fmt: skip
    return {
        "title": short(chart.title), "left": round(left, 1), "top": TOP, "width": round(width, 1), "height": HEIGHT,
        "rows": [(f"{TOP + (1 - share) * HEIGHT:.1f}", text) for share, text in rows],
        "columns": [(f"{left + x_of(at):.1f}", text) for at, text in columns],
        "paths": [(_css(mark), _path(mark, x_of, y_of)) for mark in marks],
        "texts": [
            (f"{left + x_of(x):.1f}", f"{TOP + y_of(y) + (16 if below else -8):.1f}", text)
            for x, y, below, text in chart.texts
        ],
        "legend": [
            (4 + i % beside * WIDTH // 2, TOP + HEIGHT + 54 + 18 * (i // beside), css, short(label))
            for i, (label, css) in enumerate(legend)
        ],
        "whole": (WIDTH, TOP + HEIGHT + 40 + (6 + 18 * -(-len(legend) // beside) if legend else 0)),
        "data": json.dumps(data, separators=(",", ":")),
    }  # fmt: skip


def _thinned(mark: ChartMark, y: np.ndarray) -> ChartMark:
    """The mark with few points: of a long one those with the lowest and highest `y` of each stretch, so that spikes stay."""
    if len(mark.x) <= MOST_POINTS:
        return mark
    stretches = np.array_split(np.arange(len(mark.x)), MOST_POINTS // 2)
    kept = np.unique([part[find(y[part])] for part in stretches for find in (np.argmin, np.argmax)])
    return mark._replace(x=mark.x[kept], y=mark.y[kept], low=None if mark.low is None else mark.low[kept])


def _y_range(chart: Chart, marks: Sequence[ChartMark]) -> tuple[float, float]:
    """The ends of the y axis; of a logarithmic one as powers of ten."""
    edges = [edge for mark in marks if mark.style not in VERTICAL for edge in (mark.y, mark.low) if edge is not None]
    low, high = (float(end(end(edge) for edge in edges)) for end in (min, max))
    if chart.log:
        low, high = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
        return low, max(high, low + 1)
    if chart.top is not None:
        return 0.0, chart.top
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return 0.0 if low >= 0 else low - pad, high + pad


def _y_ticks(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Each tick's place, as a share of the axis from below, and its text."""
    if log:
        powers = range(int(low), int(high) + 1, max(1, -(-int(high - low) // 5)))
        return [((power - low) / (high - low), f"10{f'{power}'.translate(POWERS)}") for power in powers]
    return [((at - low) / (high - low), number(at)) for at in ticks(low, high, 5)]


def ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers from `low` to `high`, about `most` or fewer. whole: integers only."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)) if size * power >= rough * 0.999)
    step = max(step, 1.0) if whole else step
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Formats a number briefly."""
    text = f"{value:,.10g}" if abs(value) >= 1 or not value else f"{value:.3g}"
    return text.replace("e-0", "e-").replace("-", "−")


def _css(mark: ChartMark) -> str:
    """The CSS classes of a mark. When the colours are used up, dashes tell lines apart."""
    dashes, colour = divmod(mark.colour or 0, SERIES)
    dashed = f" dash{dashes % DASHES}" if dashes % DASHES else ""
    return mark.style + ("" if mark.colour is None else f" c{colour}{dashed}")


def _path(mark: ChartMark, x_of: Any, y_of: Any) -> str:
    """The path of a mark, within the axes."""
    xs = [f"{x:.1f}" for x in x_of(mark.x)]
    if mark.style in VERTICAL:
        return "".join(f"M{x} 0V{HEIGHT}" for x in xs)
    ys = [f"{y:.1f}" for y in y_of(mark.y)]
    lows = [] if mark.low is None else [f"{y:.1f}" for y in y_of(mark.low)]
    if mark.style == "bars":
        return "".join(f"M{x} {low}V{y}" for x, low, y in zip(xs, lows, ys))
    if mark.style == "dots":
        return "".join(f"M{x} {y}h0" for x, y in zip(xs, ys))
    edge = [f"{x} {y}" for x, y in zip(xs, ys)] + [f"{x} {y}" for x, y in zip(xs[::-1], lows[::-1])]
    return f"M{'L'.join(edge)}{'Z' if lows else ''}"


def _values(mark: ChartMark) -> list[Any]:
    """Label, colour, steps and values of a mark, as page.js shows them."""
    if mark.style == "bars":
        assert mark.low is not None
        values: list[Any] = [f"{low:.3g} to {high:.3g}" for low, high in zip(mark.low, mark.y)]
    else:
        values = [float(f"{value:.4g}") for value in (mark.y if mark.low is None else mark.y - mark.low)]
    steps = [int(x) if x == int(x) else float(x) for x in mark.x]
    return [short(mark.label), f"c{(mark.colour or 0) % SERIES}", steps, values]


def short(label: str) -> str:
    """Shortens a label to the width of a figure, by cutting its middle."""
    label = visible(label)
    return label if len(label) <= LONGEST else f"{label[: LONGEST // 2]}…{label[-LONGEST // 2 + 1 :]}"
