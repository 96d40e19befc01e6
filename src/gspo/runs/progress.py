"""The live view of a run in the terminal; without a terminal, one plain line per step."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gspo.runs.log import is_number
from gspo.safe import visible

REFRESH = 0.2  # minimum seconds between two redraws, so that they cost next to nothing
HISTORY = 40  # steps in a sparkline
BARS = "▁▂▃▄▅▆▇█"
NAME, BAR, LEAST = 17, 30, 5  # columns of a name and a bar if there is room; minimum of a bar or sparkline

# Metric, label on the screen, format of its value.
SHOWN = (
    ("eval/accuracy", "held-out accuracy", "{:.1%}"),
    ("reward", "reward", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("clip_ratio/region_mean", "clipped", "{:.1%}"),
    ("completions/mean_length", "length", "{:.0f} tokens"),
    ("entropy", "entropy", "{:.3f} nats"),
    ("tokens_per_second", "throughput", "{:,.0f} tokens/s"),
)


class Terminal(Console):
    """A console that goes quiet when its reader closes the pipe. rich itself would end the program."""

    def on_broken_pipe(self) -> None:
        """Stops printing."""
        self.quiet = True


class Progress:
    """Shows the progress of a run: its step, phase, newest metrics and the time left.

    Prints plain lines if the output is no terminal, in CI, and with TERM=dumb. Other output appears above the live view. If
    the output is lost (closed terminal, `| head` has ended), the run goes on without it. Shows nothing if the logger "gspo"
    has a level above INFO (`--quiet`).

    Args:
        total_steps: 0 for a single phase without steps, None if unknown.
        start_step: Steps done already.
        title: Label of the step bar.
        console: By default standard output.
    """

    def __init__(
        self,
        total_steps: int | None,
        start_step: int = 0,
        title: str = "training",
        console: Console | None = None,
    ) -> None:
        self.total, self.done, self.title = total_steps, start_step, title
        self._console = console or Terminal(file=sys.stdout, highlight=False)
        no_terminal = not self._console.is_terminal or os.environ.get("TERM") == "dumb"
        self.plain = no_terminal or bool(os.environ.get("CI"))
        self._quiet = logging.getLogger("gspo").level > logging.INFO
        self._live: Live | None = None
        self._lost = False
        self._history: dict[str, deque[float]] = {}
        self._phase: tuple[str, int, int] = ("", 0, 0)
        self._times: deque[float] = deque(maxlen=21)  # when the last steps ended
        self._begin = self._drawn = time.monotonic()

    def __enter__(self) -> Progress:
        self._begin = time.monotonic()
        self._times.append(self._begin)
        if not self.plain and not self._quiet:
            self._live = Live(self._view(), console=self._console, auto_refresh=False)
            self._show(self._live.start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._phase = ("", 0, 0)
            self._draw(now=True)
            self._show(self._live.stop)
            self._live = None

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        """Show the current phase of the step, and how much of it is done (total 0: unknown)."""
        new = name != self._phase[0]
        self._phase = (name, done, total)
        self._draw(now=new)

    def step(self, metrics: dict[str, Any]) -> None:
        """Show the metrics of a finished step (`step` counts from 1; 0 is an evaluation before training)."""
        for key, _, _ in _shown(metrics):
            self._history.setdefault(key, deque(maxlen=HISTORY)).append(float(metrics[key]))
        step = int(metrics.get("step", self.done + 1))
        if step > self.done:
            self.done = step
            self._times.append(time.monotonic())
        if self._quiet:
            return
        if self.plain:
            self._print(self._line(metrics, step))
        else:
            if not _shown(metrics):  # the view has no place for them
                self._print(self._line(metrics, step))
            elif is_number(metrics.get("eval/accuracy")):
                self._print(f"step {step}: {_accuracy(metrics)}")
            self._draw()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._print(text)

    def _show(self, draw: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            draw()
        except OSError:
            self._lost = True

    def _print(self, text: str) -> None:
        # As Text, so that "[/]" in a warning is not parsed as markup. Plain lines are not wrapped.
        self._show(lambda: self._console.print(Text(visible(text)), soft_wrap=self.plain))
        if self.plain:
            self._show(self._console.file.flush)

    def _draw(self, now: bool = False) -> None:
        time_now = time.monotonic()
        live = self._live
        if live is not None and (now or time_now - self._drawn >= REFRESH):
            self._drawn = time_now
            self._show(lambda: live.update(self._view(), refresh=True))

    def _seconds_left(self) -> float | None:
        """Estimated seconds left, from the pace of the last 20 steps."""
        if len(self._times) < 2 or not self.total:
            return None
        return (self._times[-1] - self._times[0]) / (len(self._times) - 1) * (self.total - self.done)

    def _line(self, metrics: dict[str, Any], step: int) -> str:
        parts = [f"step {self._count(step)}"]
        for key, name, form in _shown(metrics) or _all(metrics):
            parts.append(_accuracy(metrics) if key == "eval/accuracy" else f"{name} {form.format(metrics[key])}")
        seconds_left = self._seconds_left()
        if seconds_left is not None and self.total and step < self.total:
            parts.append(f"{clock(seconds_left)} left")
        return "  ".join(parts)

    def _count(self, step: int) -> str:
        """Step and total, as "3/10"; the step alone if there is no total or it was passed."""
        return f"{step}/{self.total}" if self.total and step <= self.total else f"{step}"

    def _view(self) -> RenderableType:
        width = self._console.width
        rows: list[RenderableType] = []
        if self.total != 0:
            seconds_left = self._seconds_left()
            texts = [self._count(self.done) if self.total else f"step {self.done}"]
            texts.append(f"{texts[0]}  {clock(time.monotonic() - self._begin)}")
            texts += [f"{texts[1]}, {clock(seconds_left)} left"] if seconds_left else []
            rows.append(_bar(self.title, self.done, self.total or 0, texts, "cyan", width))
        name, done, total = self._phase
        if name:
            rows.append(_bar(name, done, total, [f"{done}/{total}" if total else ""], "dim cyan", width))
        if self._history:
            rows.append(_numbers(self._history, width))
        return Group(*rows)


def _bar(name: str, done: int, total: int, texts: Sequence[str], style: str, width: int) -> Table:
    """A row of at most `width` columns: a name, a bar if there is room for one, and the longest of `texts` that fits."""
    text = max((text for text in texts if len(text) <= width - NAME - 2), key=len, default=texts[0])
    named = min(NAME, max(1, width - len(text) - 2))
    room = min(BAR, width - named - len(text) - 4)
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=named, no_wrap=True, overflow="ellipsis")
    # Without a total the bar is empty: a pulsing one would need a drawing thread.
    bar = [ProgressBar(total or 1, done if total else 0, width=room, complete_style=style)] if room >= LEAST else []
    row.add_row(Text(name, "bold"), *bar, Text(text, no_wrap=True))
    return row


def _numbers(history: Mapping[str, Sequence[float]], width: int) -> Table:
    """The newest metrics, each with a sparkline of as many past values as fit."""
    newest = _shown({key: values[-1] for key, values in history.items()})
    values = [form.format(history[key][-1]) for key, _, form in newest]
    wide = max((len(value) for value in values), default=0)
    named = min(max((cell_len(label) for _, label, _ in newest), default=0), max(1, width - wide - 2))
    room = width - named - wide - 4
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=named, no_wrap=True, overflow="ellipsis")
    for (key, label, _), value in zip(newest, values):
        line = [Text(sparkline(list(history[key])[-room:]), "cyan", no_wrap=True)] if room >= LEAST else []
        table.add_row(Text(visible(label), "dim"), Text(value, no_wrap=True), *line)
    return table


def _shown(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The metrics to show, as rows of SHOWN: also the parts of the reward if there are several, but no policy loss."""
    parts = [key for key in metrics if key.startswith("reward/")]
    rows = [*SHOWN, *((key, key.removeprefix("reward/"), "{:.2f}") for key in parts if len(parts) > 1)]
    return [row for row in rows if is_number(metrics.get(row[0])) and (row[0] != "loss" or "reward" not in metrics)]


def _all(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Every metric under its own name, as rows of SHOWN: for those that an agent logged, such as `val/reward`."""
    return [(key, key, "{:.4g}") for key, value in metrics.items() if key != "step" and is_number(value)]


def _accuracy(metrics: dict[str, Any]) -> str:
    text = f"held-out accuracy {metrics['eval/accuracy']:.1%}"
    low, high = metrics.get("eval/accuracy_low"), metrics.get("eval/accuracy_high")
    text += f" (95 % interval {low:.1%} to {high:.1%})" if low is not None and high is not None else ""
    failed = metrics.get("eval/failed")
    return text + (f", {failed:.0f} completions not scored (they count as wrong)" if failed else "")


def sparkline(values: list[float]) -> str:
    """Values as bars, scaled from their minimum to their maximum; equal values lie at the bottom, NaN is a gap."""
    real = [v for v in values if is_number(v)]
    if not real:
        return ""
    low, span = min(real), max(real) - min(real)
    return "".join(BARS[round((v - low) / span * 7) if span else 0] if v in real else " " for v in values)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
