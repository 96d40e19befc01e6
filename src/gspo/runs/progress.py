"""The live view of a run in the terminal; without a terminal, one plain line per step."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.status import Status
from rich.table import Table
from rich.text import Text

from gspo.runs.log import is_number
from gspo.safe import visible

REFRESH = 0.2  # minimum seconds between two redraws, so that they cost next to nothing
HISTORY = 40  # steps in a sparkline
BARS = "▁▂▃▄▅▆▇█"

# Phases that a plain output names once, so that the first minute is not silent.
SLOW = {"sampling": "sampling {} completions", "updating": "{} updates", "evaluating": "evaluating {} completions"}
# Metric, label on the screen, format of its value.
SHOWN = (
    ("eval/accuracy", "held-out accuracy", "{:.1%}"),
    ("reward", "reward", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("clip_ratio/region_mean", "clip", "{:.1%}"),
    ("completions/mean_length", "length", "{:.0f} tokens"),
    ("entropy", "entropy", "{:.3f} nats"),
    ("tokens_per_second", "throughput", "{:,.0f} tokens/s"),
)


class Terminal(Console):
    """A console that goes quiet when its reader closes the pipe. rich itself would end the program."""

    def on_broken_pipe(self) -> None:
        """Stops printing."""
        self.quiet = True


def spinner(text: str) -> Status:
    """A spinner on stderr while something is loaded, if that is a terminal. A notebook would show an empty output for it."""
    return Console(stderr=True, force_terminal=sys.stderr.isatty(), force_jupyter=False).status(text)


class Progress:
    """Shows the progress of a run: its step, phase, newest metrics and the time left.

    Prints plain lines if the output is no terminal (a notebook, for example), in CI, and with TERM=dumb. Other output
    appears above the live view. If the output is lost (closed terminal, `| head` has ended), the run goes on without it.
    Shows nothing if the logger "gspo" has a level above INFO (`--quiet`). total_steps: 0 for a single phase without steps,
    None if unknown.
    """

    def __init__(
        self, total_steps: int | None, start_step: int = 0, title: str = "training", console: Console | None = None
    ) -> None:
        self.total, self.done, self.title = total_steps, start_step, title
        # Text in a notebook: JupyterLab shows only 50 of rich's outputs. Its kernel sets FORCE_COLOR, but is no terminal.
        out = sys.stdout
        self._console = console or Terminal(file=out, highlight=False, force_terminal=out.isatty(), force_jupyter=False)
        no_terminal = not self._console.is_terminal or os.environ.get("TERM") == "dumb"
        self.plain = no_terminal or bool(os.environ.get("CI"))
        self._quiet = logging.getLogger("gspo").level > logging.INFO
        self._live: Live | None = None
        self._lost = False
        self._history: dict[str, deque[float]] = {}
        self._phase: tuple[str, int, int] = ("", 0, 0)
        self._unsaid = dict(SLOW)
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
        if self.plain and not self._quiet and total and (text := self._unsaid.pop(name, "")):
            self.note(text.format(total))
        self._draw(now=new)

    def step(self, metrics: dict[str, Any]) -> None:
        """Show the metrics of a finished step (`step` counts from 1; 0 is an evaluation before training)."""
        shown = shown_metrics(metrics)
        for key, _, _ in shown:
            self._history.setdefault(key, deque(maxlen=HISTORY)).append(float(metrics[key]))
        step = int(metrics.get("step", self.done + 1))
        if step > self.done:
            self.done = step
            self._times.append(time.monotonic())
        if self._quiet:
            return
        if self.plain or not shown:  # the live view has no place for other metrics
            self.note(self._line(metrics, step))
        elif is_number(metrics.get("eval/accuracy")):
            self.note(f"step {step}: {_accuracy(metrics)}")
        self._draw()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        # As Text, so that "[/]" in a warning is not parsed as markup. Plain lines are not wrapped.
        self._show(lambda: self._console.print(Text(visible(text)), soft_wrap=self.plain))
        if self.plain:
            self._show(self._console.file.flush)

    def _show(self, draw: Callable[[], object]) -> None:
        if self._lost:
            return
        try:
            draw()
        except OSError:
            self._lost = True

    def _draw(self, now: bool = False) -> None:
        live = self._live
        if live is not None and (now or time.monotonic() - self._drawn >= REFRESH):
            self._drawn = time.monotonic()
            self._show(lambda: live.update(self._view(), refresh=True))

    def _left(self) -> str:
        """The time left at the pace of the last 20 steps; "" if it is unknown or over."""
        if len(self._times) < 2 or not self.total or self.done >= self.total:
            return ""
        pace = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return f"{clock(pace * (self.total - self.done))} left"

    def _line(self, metrics: dict[str, Any], step: int) -> str:
        parts = [f"step {self._count(step)}"]
        others = [(key, key, "{:.4g}") for key, value in metrics.items() if key != "step" and is_number(value)]
        for key, name, form in shown_metrics(metrics) or others:  # others: those that an agent logged, such as `val/reward`
            parts.append(_accuracy(metrics) if key == "eval/accuracy" else f"{name} {form.format(metrics[key])}")
        left = self._left()
        return "  ".join([*parts, left] if left else parts)

    def _count(self, step: int) -> str:
        """Step and total, as "3/10"; the step alone if there is no total or it was passed."""
        return f"{step}/{self.total}" if self.total and step <= self.total else f"{step}"

    def _view(self) -> RenderableType:
        """Two bars and a table of the newest metrics. In a narrow terminal, bars and names are cut off first."""
        bars = _grid()
        if self.total != 0:
            count = self._count(self.done) if self.total else f"step {self.done}"
            left = f", {self._left()}" if self._left() else ""
            bars.add_row(*_bar(self.title, self.done, self.total), f"{count}  {clock(time.monotonic() - self._begin)}{left}")
        name, done, total = self._phase
        if name:
            bars.add_row(*_bar(name, done, total), f"{done}/{total}" if total else "")
        numbers = _grid()
        for key, label, form in shown_metrics({key: values[-1] for key, values in self._history.items()}):
            values = list(self._history[key])
            line = Text(sparkline(values[-max(1, self._console.width - 40) :]), "cyan")
            numbers.add_row(Text(visible(label), "dim"), line, form.format(values[-1]))
        return Group(bars, numbers)


def _grid() -> Table:
    """A table of names, bars and values, whose values stay whole where the terminal is narrow."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(overflow="ellipsis")
    table.add_column(max_width=HISTORY, overflow="crop")
    table.add_column(no_wrap=True)
    return table


def _bar(name: str, done: int, total: int | None) -> tuple[RenderableType, RenderableType]:
    # Without a total the bar is empty: a pulsing one would need a drawing thread.
    bar = ProgressBar(total or 1, done if total else 0, width=30, complete_style="cyan")
    return Text(name, "bold", no_wrap=True, overflow="ellipsis"), bar


def shown_metrics(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The metrics to show, as rows of SHOWN: also the parts of the reward if there are several, but no policy loss."""
    parts = [key for key in metrics if key.startswith("reward/")]
    rows = [*SHOWN, *((key, key.removeprefix("reward/"), "{:.2f}") for key in parts if len(parts) > 1)]
    return [row for row in rows if is_number(metrics.get(row[0])) and (row[0] != "loss" or "reward" not in metrics)]


def _accuracy(metrics: dict[str, Any]) -> str:
    text = f"held-out accuracy {metrics['eval/accuracy']:.1%}"
    low, high = metrics.get("eval/accuracy_low"), metrics.get("eval/accuracy_high")
    text += f" (95 % interval {low:.1%} to {high:.1%})" if low is not None and high is not None else ""
    reward, failed = metrics.get("eval/reward"), metrics.get("eval/failed")
    if is_number(reward) and abs(reward - metrics["eval/accuracy"]) > 1e-9:  # graded
        text += f", held-out reward {reward:.3f}"
    return text + (f", {failed:.0f} completions not scored (they count as wrong)" if failed else "")


def sparkline(values: list[float]) -> str:
    """Values as bars, scaled from their minimum to their maximum; equal values lie at the bottom."""
    low, span = min(values), max(values) - min(values)
    return "".join(BARS[round((v - low) / span * 7) if span else 0] for v in values)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
