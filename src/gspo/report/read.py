"""Reads a run folder: its metrics, and the rollouts of its first and last step.

These files are not trusted. Values of another type than a run writes are dropped here, so that figures and pages need no
checks. Imports nothing else from gspo.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LARGEST = 1e150  # magnitude of a number: its square is still finite
MOST_BYTES = 16 << 20  # read at either end of a rollouts.jsonl, which may be huge
TIMES = (("time/sample", "sampling"), ("time/score", "scoring"), ("time/train", "training"))


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


def is_step(value: Any) -> bool:
    """Whether a value is the number of a step."""
    return type(value) is int and 0 <= value < 1 << 53


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of a JSONL file. A missing file counts as empty; malformed (half-written) lines are skipped."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            row = _object(line)
            if row is not None:
                yield row


def read_run(run_dir: str | Path, name: str | None = None, begun: bool = True) -> RunMetrics:
    """Reads a run from its folder. Raises ValueError if it has no step yet, unless `begun` is False."""
    folder = Path(run_dir)
    lines = [_metrics(line) for line in read_lines(folder / "metrics.jsonl") if is_step(line.get("step", 0))]
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
        return _one_step(map(_row, file.read(MOST_BYTES).split(b"\n")))


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
    yield from filter(None, map(_row, reversed(lines)))


def _one_step(found: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The first of these rollouts, up to one of another step. None: a line that is cut off, which is no JSON."""
    rows: list[dict[str, Any]] = []
    for row in found:
        if row and rows and row["step"] != rows[0]["step"]:
            break
        rows += [row] if row else []
    return rows


def _object(line: bytes) -> dict[str, Any] | None:
    """Parses a line of JSON that holds an object; None for anything else."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _metrics(line: dict[str, Any]) -> dict[str, Any]:
    """A line of metrics, reduced to numbers, lists, and null for metrics without a value."""
    return {key: value for key, value in line.items() if value is None or is_number(value) or isinstance(value, list)}


def _row(line: bytes) -> dict[str, Any] | None:
    """Parses a rollout, with each field of the type that a run writes; None if the line is no rollout."""
    row = _object(line)
    if row is None or not is_step(row.get("step")):
        return None
    prompt = row.get("prompt", "")
    kept = {"step": row["step"], "prompt": prompt if isinstance(prompt, list) else str(prompt), "reward": None}
    kept |= {key: row[key] for key in ("reward", "advantage") if is_number(row.get(key))}
    kept |= {key: str(row[key]) for key in ("completion", "stop", "error", "answer") if row.get(key) is not None}
    if isinstance(parts := row.get("reward_parts"), dict):
        kept["reward_parts"] = {name: value if is_number(value) else None for name, value in parts.items()}
    lists = {key: value for key, value in row.items() if isinstance(value, list)}
    kept |= {key: lists[key] for key in ("token_ids", "tokens") if key in lists}
    for key in {"log_ratio", "logp", "token_turns"} & lists.keys():
        kept[key] = [value if is_number(value) else None for value in lists[key]]
    dialogue = [_message(each) for each in lists.get("dialogue", ()) if isinstance(each, dict)]
    return kept | ({"dialogue": dialogue} if dialogue else {})


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message of a conversation: `role`, `content`, and optionally `turn`, `reward`, and why it was `left_out`."""
    texts = {key: str(message[key]) for key in ("role", "content", "left_out") if message.get(key) is not None}
    reward, turn = message.get("reward"), message.get("turn")
    return texts | ({"reward": reward} if is_number(reward) else {}) | ({"turn": turn} if is_step(turn) else {})
