"""Reads a run folder: its metrics, and the rollouts of its first and last step. Imports nothing else from gspo."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 1e150  # magnitude of a number: its square is still finite
MOST_BYTES = 16 << 20  # read at either end of a rollouts.jsonl, which may be huge
TIMES = (("time/sample", "sampling"), ("time/score", "scoring"), ("time/train", "training"), ("time/sync", "sync"))


@dataclass(frozen=True)
class RunMetrics:
    """What figures use of a run: its name, and the lines of its metrics.jsonl."""

    name: str
    lines: list[dict[str, Any]]

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps [n] and values [n] of the lines that have a number under `key`."""
        pairs = [(line.get("step", i), line[key]) for i, line in enumerate(self.lines, 1) if is_number(line.get(key))]
        steps, values = zip(*pairs) if pairs else ((), ())
        return np.asarray(steps, float), np.asarray(values, float)

    def rows(self, keys: Sequence[str]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Steps [n], and values [n] for each key, of the lines that have all keys."""
        lines = [r for r in self.lines if all(is_number(r.get(k)) for k in ("step", *keys))]
        steps, *values = (np.array([r[k] for r in lines], float) for k in ("step", *keys))
        return steps, values


def is_number(value: Any) -> bool:
    """Whether a metric has a finite value. A value too large for any figure does not count."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSONL file. A missing file counts as empty; malformed (half-written) lines are skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        yield from filter(None, map(_object, file))


def read_run(run_dir: str | Path, name: str | None = None, begun: bool = True) -> RunMetrics:
    """Reads a run from its folder. Raises ValueError if it has no step yet, unless `begun` is False."""
    folder = Path(run_dir)
    lines = list(read_lines(folder / "metrics.jsonl"))
    if not lines and begun:
        errors = [event.get("text") for event in read_lines(folder / "events.jsonl") if event.get("kind") == "error"]
        why = f". This one failed before its first step: {errors[-1]}" if errors else ""
        raise ValueError(f"{folder}: no metrics.jsonl with at least one step; give the folder of a run (log.dir){why}")
    for line in lines:
        parts = [line[k] for k, _ in TIMES if is_number(line.get(k))]
        if parts:
            line.setdefault("time/step", sum(parts))
    return RunMetrics(name or folder.resolve().name, lines)


def run_names(run_dirs: Sequence[str | Path]) -> list[str]:
    """A short name for each run: that of its folder, with the parent's if two are the same."""
    paths = [Path(d).resolve() for d in run_dirs]
    names = [p.name for p in paths]
    return [n if names.count(n) == 1 else f"{p.parent.name}/{n}" for n, p in zip(names, paths)]


def first_step(path: Path) -> list[dict[str, Any]]:
    """The rollouts of the first step in a rollouts.jsonl; [] where there is none."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        return _one_step(filter(None, map(_object, file.read(MOST_BYTES).split(b"\n"))))


def last_step(path: Path) -> list[dict[str, Any]]:
    """The rollouts of the last step in a rollouts.jsonl; [] where there is none."""
    return _one_step(newest_rows(path))[::-1]


def newest_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rollouts in a rollouts.jsonl, newest first; of a huge one only those near its end."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_BYTES))
        lines = file.read().split(b"\n")
    yield from filter(None, map(_object, reversed(lines)))


def _one_step(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of these rollouts, up to one of another step."""
    return next((list(found) for _, found in groupby(rows, itemgetter("step"))), [])


def _object(line: bytes) -> dict[str, Any] | None:
    """Parses a line of JSON; None if it is cut off."""
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return row
