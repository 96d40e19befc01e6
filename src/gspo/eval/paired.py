"""Compares two models on one benchmark, paired by problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gspo.eval.manifest import load
from gspo.eval.replies import Mark, read
from gspo.eval.results import LIKE, THESE
from gspo.statistics.intervals import Interval, accuracy_interval, interval, newcombe, no_narrower
from gspo.statistics.scores import over_these
from gspo.statistics.verdicts import in_points, verdict

COMPARED = ("prompt", "computation", "sampling", "scoring", "samples")
"""Manifest entries in which two evaluations may differ besides the model."""


class Paired(NamedTuple):
    """The difference of two models' avg@n, first minus second."""

    these: Interval  # over these problems
    like: Interval  # over problems like these
    words: str
    differs: list[str]  # settings that differ as well, so that the difference is not due to the models alone


def correct_of(folder: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The manifest of a finished evaluation, and the correct replies to each problem. Raises ValueError if there is none."""
    there = load(folder)
    marks = read(folder / "marks.jsonl", Mark)
    n, problems = there["samples"], dict.fromkeys(problem for problem, _ in marks)
    expected = there["data"]["problems"]
    if len(marks) != n * len(problems) or len(problems) != expected:
        raise ValueError(f"{folder}: is not finished: {len(marks)} of {expected} x {n} replies are scored; finish it first")
    return there, {problem: sum(marks[problem, i].right for i in range(n)) for problem in problems}


def check(this: Mapping[str, Any], other: Path) -> None:
    """Checks that `other` holds a finished evaluation of the same problems as the manifest `this`. Raises ValueError."""
    theirs, _ = correct_of(other)
    if theirs["data"]["sha256"] != this["data"]["sha256"]:
        raise ValueError(
            f"--against {other}: its problems are others ({theirs['benchmark']}): only evaluations of the same data compare"
        )


def compared(first: Path, second: Path) -> Paired:
    """Compares the evaluation in `first` with that in `second`, which `check` has found to be of the same data."""
    (mine, a), (theirs, b) = correct_of(first), correct_of(second)
    differs = [key for key in COMPARED if mine.get(key) != theirs.get(key)]
    names = str(mine["model"]), str(theirs["model"])
    if names[0] == names[1]:
        names = str(first), str(second)
    return paired(a, mine["samples"], b, theirs["samples"], names, differs)


def paired(
    a: Mapping[str, int], n: int, b: Mapping[str, int], m: int, names: tuple[str, str], differs: Sequence[str] = ()
) -> Paired:
    """The difference of two models, a - b: correct replies to each problem, out of `n` and out of `m`."""
    mine, theirs = list(a.values()), [b[problem] for problem in a]
    these = _difference(over_these(mine, n), over_these(theirs, m))
    differences = [c / n - d / m for c, d in zip(mine, theirs)]
    like = _like(differences, these, accuracy_interval([c / n for c in mine]), accuracy_interval([d / m for d in theirs]))
    text = verdict(*names, like, f"avg, {LIKE}", 1, "problem", share=True)
    if like.n > 1 and not like.resolved and these.resolved:
        more = "higher" if these.mean > 0 else "lower"
        text += f" {THESE.capitalize()} alone it is {more}: {in_points(these)}."
    if differs:
        text += f" They differ also in {', '.join(differs)}."
    return Paired(these, like, text, list(differs))


def _difference(a: Interval, b: Interval) -> Interval:
    """a - b with an interval from both intervals."""
    low, high = newcombe((b.mean, b.low, b.high), (a.mean, a.low, a.high))  # NaN if one has no interval
    return Interval(a.mean - b.mean, max(low, -1.0), min(high, 1.0), a.n)


def _like(differences: Sequence[float], these: Interval, a: Interval, b: Interval) -> Interval:
    """The mean difference over problems like these: Student's t interval, but no narrower than sampling alone makes it. A
    few problems may have equal differences by chance; with one reply each, only the intervals of both sides reveal that.
    """
    like = interval(differences, (-1.0, 1.0))
    floor = these
    if math.isnan(these.low) and like.low == like.high:
        floor = _difference(a, b)
    return no_narrower(like, floor)
