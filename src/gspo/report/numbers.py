"""Numbers of a run as text: shares, times, and how a metric changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo.report.read import RunMetrics, is_number

ARROW = " → "
INTERVAL = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
NBSP = "\u00a0"  # keeps a number and its unit on one line


def steps(run: RunMetrics) -> int:
    """The number of the last step."""
    return max((line["step"] for line in run.lines if line.get("step") is not None), default=0)


def borders(run: RunMetrics) -> list[float]:
    """The steps at which a new stage begins."""
    steps, stages = run.series("stage")
    return [float(step) for step, before, stage in zip(steps[1:], stages, stages[1:]) if stage > before]


def seconds(run: RunMetrics) -> float:
    """Total time of the steps and the evaluations, in seconds."""
    return float(run.series("time/step")[1].sum() + run.series("time/eval")[1].sum())


def duration(length: float) -> str:
    """Formats seconds in a suitable unit."""
    if length < 180:
        return f"{length:.0f}{NBSP}s" if length >= 10 else f"{length:.1f}{NBSP}s"
    return f"{length / 60:.0f}{NBSP}min" if length < 7200 else f"{length / 3600:.1f}{NBSP}h"


def count(number: float) -> str:
    """Formats a large number briefly."""
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.1f} {name}"
    return f"{number:,.0f}"


def plural(number: int, word: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {word}{'s' if number != 1 else ''}"


def mean(run: RunMetrics, key: str) -> float | None:
    """The mean of a metric over the run; None if it has no values."""
    values = run.series(key)[1]
    return float(values.mean()) if len(values) else None


def ends(run: RunMetrics, key: str) -> tuple[float, ...]:
    """Means of the first and the last twelfth of a metric's steps; a single value as it is; () for none."""
    values = run.series(key)[1]
    few = max(1, len(values) // 12)
    return tuple(float(part.mean()) for part in (values[:few], values[-few:])[: len(values)]) if len(values) else ()


def change(values: Sequence[float], form: str) -> str:
    """Formats values with arrows between them."""
    return ARROW.join(form.format(value) for value in values).replace("-", "−")


def percent(share: float | None) -> str:
    """Formats a share in percent; "" for None. Only 0 is 0 %, and only 1 is 100 %."""
    if share is None:
        return ""
    if 0.995 <= share < 1:
        return f"{min(99.9, 100 * share):.1f}{NBSP}%"
    return f"{100 * share:.0f}{NBSP}%" if share >= 0.1 or share == 0 else f"{100 * share:.2g}{NBSP}%"


def accuracy(run: RunMetrics) -> str:
    """Formats the accuracy of the first and the last evaluation."""
    values = run.series("eval/accuracy")[1]
    return ARROW.join(percent(v) for v in ([values[0], values[-1]] if len(values) > 1 else values))


def graded(run: RunMetrics) -> str:
    """Formats the reward of the first and the last evaluation if it says more than the accuracy; "" otherwise."""
    _, (right, reward) = run.rows(("eval/accuracy", "eval/reward"))
    if not (abs(reward - right) > 1e-9).any():
        return ""
    return change([reward[0], reward[-1]][: len(reward)], "{:.2f}")


def with_interval(run: RunMetrics) -> list[dict[str, Any]]:
    """The metric lines that have an accuracy and its interval."""
    return [line for line in run.lines if all(is_number(line.get(key)) for key in INTERVAL)]


def interval(line: dict[str, Any]) -> str:
    """Formats the 95 % interval of an accuracy."""
    low = percent(line["eval/accuracy_low"]).removesuffix(f"{NBSP}%")
    return f"{low}–{percent(line['eval/accuracy_high'])}"


def last_interval(run: RunMetrics) -> str:
    """The 95 % interval of the last evaluation, in brackets; "" if there is none."""
    lines = with_interval(run)
    return f" ({interval(lines[-1])})" if lines else ""
