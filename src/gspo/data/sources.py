"""Rows of a data source: a file, a Hugging Face data set, a function, or a list in memory."""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo.config.checks import VERIFIERS, nearest
from gspo.config.lookup import describe, load_function, unknown_arguments
from gspo.config.rollout import TaskConfig
from gspo.data import reasoning_gym
from gspo.data.frames import Junk, unpacked
from gspo.data.processes import kill, spawn
from gspo.data.verifiers_tasks import tasks_of

SUFFIXES = (".jsonl", ".parquet", ".csv")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SILENCE, LONGEST = 3600.0, 1 << 26
"""Seconds that making items may take without a word, and bytes of one item."""


@dataclass(frozen=True)
class Table:
    """Some rows of a source. `numbers`: which, from 0. `label`: what errors call the source."""

    label: str
    rows: Sequence[Mapping[str, Any]]
    numbers: range

    def part(self, start: int, stop: int) -> Table:
        """Rows start to stop of these, under their old numbers. Copies nothing."""
        return Table(self.label, self.rows, self.numbers[start:stop])

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return ((number, self.rows[number]) for number in self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def table(rows: Any, label: str) -> Table:
    """A table of a list of dicts or what is like one (`datasets.Dataset`). Raises ValueError otherwise."""
    if hasattr(rows, "keys"):
        names = ", ".join(map(str, rows.keys()))
        raise ValueError(
            f"{label}: expected a list of rows, got a {type(rows).__name__} with {names}: choose one split, or give a "
            "list with a dict for each row"
        )
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__") or isinstance(rows, str):
        raise ValueError(
            f"{label}: expected a list of dicts or a datasets.Dataset, got a {type(rows).__name__} "
            "(a streamed data set has no length: give a list of the rows to use)"
        )
    if not len(rows):
        raise ValueError(f"{label}: there are no rows")
    return Table(label, rows, range(len(rows)))


def has_splits(source: str) -> bool:
    """Whether a source is a Hugging Face data set, or a taskset with an option `split`."""
    if source.startswith(VERIFIERS):
        return True
    generated = source.startswith(reasoning_gym.PREFIX) or FUNCTION.fullmatch(source)
    return bool(source) and not generated and Path(source).suffix not in SUFFIXES


def read(source: str, task: TaskConfig, split: str, key: str = "task.source") -> Table:
    """The rows of a source that is not generated. `key` named it. Raises ValueError with the remedy."""
    where = f"{key} = {source!r}"
    if source.startswith(VERIFIERS):
        return table(tasks_of(source, task, None if split == task.split else split).rows, source)
    if FUNCTION.fullmatch(source):
        return _call(source, task, key)
    path = Path(source)
    if path.suffix in SUFFIXES:
        if task.config:
            raise ValueError(f"task.config = {task.config!r}: has no effect on the file {source}; remove it")
        return table(_file(path, where), source)
    if path.is_file() or nearest(path.suffix, SUFFIXES) or path.suffix in (".json", ".txt", ".tsv"):
        raise ValueError(f"{where}: files can be {', '.join(SUFFIXES)}, not {path.suffix or 'this'}")
    return _hugging_face(source, task, split, where)


def _call(source: str, task: TaskConfig, key: str) -> Table:
    function = load_function(source, key)
    if problem := unknown_arguments(function, task.config):
        raise ValueError(f"task.config = {task.config!r}: {source} cannot be called with it: {problem}")
    try:
        rows = function(**task.config)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{key} = {source!r}: {source} raised {describe(error)}") from error
    return table(rows, source)


def _file(path: Path, where: str) -> list[dict[str, Any]]:
    try:
        if not path.stat().st_size:
            raise ValueError(f"{path}: the file is empty")
        read_rows = {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}[path.suffix]
        return read_rows(path)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else []
        close = nearest(path.name, siblings)
        raise ValueError(f"{where}: there is no such file in {path.parent.resolve()}{close}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None


def _jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.rstrip())
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not valid JSON: {error.msg} (column {error.colno})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object {{...}}, got {line.strip():.40}")
            rows.append(row)
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    want = len(reader.fieldnames or ())
                    raise ValueError(f"{path}, line {reader.line_num}: expected {want} fields, as in the first line")
                rows.append(row)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num + 1}: not valid CSV: {error}") from None
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"{path} needs pyarrow: pip install 'gspo[tasks]' ({error})") from None
    try:
        return parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not a Parquet file: {describe(error)}") from None


def _hugging_face(source: str, task: TaskConfig, split: str, where: str) -> Table:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{where} needs datasets: pip install 'gspo[tasks]' ({error})") from None
    try:
        rows = datasets.load_dataset(source, split=split, **task.config)
    except Exception as error:
        why = describe(error) + (f" ({describe(error.__cause__)})" if error.__cause__ else "")
        raise ValueError(
            f"{where}: no data set could be loaded with split = {split!r} and task.config = {task.config!r}: {why}"
        ) from error
    return table(rows, f"{source} [{split}]")


def generate(source: str, task: TaskConfig, train: int, held_out: int) -> tuple[Table, Table]:
    """Training and held-out items of a reasoning-gym task, made in a process of its own.

    Raises ValueError for an unknown task, bad options, or too few distinct items; warns of what looks wrong.
    """
    request = reasoning_gym.ItemsRequest(source, task.config, task.seed, train, held_out)
    process, connection = spawn("gspo.data.reasoning_gym_worker", request)
    wanted = {"train": train, "held out": held_out}
    items: dict[str, list[dict[str, Any]]] = {kind: [] for kind in wanted}
    try:
        while True:
            match unpacked(connection.receive(SILENCE, LONGEST)):
                case ["error", str(text)]:
                    raise ValueError(text)
                case ["note", str(text)]:
                    warnings.warn(text, stacklevel=2)
                case ["train" | "held out" as kind, {"question": str()} as item] if len(items[kind]) < wanted[kind]:
                    items[kind].append(item)
                case ["end", ""]:
                    break
                case message:
                    raise Junk(f"{message!r:.80}")
    except TimeoutError:
        raise RuntimeError(f"{source}: the process that makes its items sent none for {SILENCE:.0f} s") from None
    except (EOFError, OSError):
        raise RuntimeError(f"{source}: the process that makes its items died") from None
    except Junk as error:
        raise RuntimeError(f"{source}: the process that makes its items sent {error}") from None
    finally:
        kill(process)
    first, second = (Table(source, entries, range(len(entries))) for entries in items.values())
    return first, second
