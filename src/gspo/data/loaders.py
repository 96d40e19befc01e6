"""Loads the rows of a data source: a file, a Hugging Face dataset, a function, or a list in memory."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo.config import source_kind
from gspo.config.import_function import describe, load_function, unknown_arguments
from gspo.config.rollout import TaskConfig
from gspo.config.suggestions import nearest
from gspo.config.values import type_of
from gspo.data import reasoning_gym
from gspo.data.benchmarks import table as benchmarks
from gspo.data.files import rows_of
from gspo.data.messages import without_filling
from gspo.data.verifiers_tasks import tasks_of
from gspo.safe import without_secrets
from gspo.workers.processes import Lost, Process

logger = logging.getLogger(__name__)

SILENCE = 3600.0
"""Seconds that item generation may take without a message."""


@dataclass(frozen=True)
class Table:
    """Some rows of a source, which errors call `label`. `numbers` are those of the selected rows, from 0; `benchmark` is the
    source, if it is one, and `left_out` how many of its problems cannot be judged, by reason; `arrow` tells whether the rows
    are of an Arrow table.
    """

    label: str
    rows: Sequence[Mapping[str, Any]]
    numbers: range
    benchmark: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    arrow: bool = False

    def part(self, start: int, stop: int) -> Table:
        """Rows start to stop of the selection, under their old numbers. Copies nothing."""
        return dataclasses.replace(self, numbers=self.numbers[start:stop])

    def __iter__(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        rows = ((number, self.rows[number]) for number in self.numbers)
        return ((number, without_filling(row)) for number, row in rows) if self.arrow else rows

    def __len__(self) -> int:
        return len(self.numbers)


def table(rows: Any, label: str) -> Table:
    """A table from a list of dicts or a similar object (`datasets.Dataset`). Raises ValueError for anything else."""
    if hasattr(rows, "keys") or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")) or isinstance(rows, str):
        names = f" with {', '.join(map(str, rows.keys()))}" if hasattr(rows, "keys") else ""
        raise ValueError(
            f"{label}: expected a list of dicts or a datasets.Dataset, got {type_of(rows)}{names}: choose one split, or "
            'give a list with a dict for each row, such as frame.to_dict("records") (a streamed data set has no length)'
        )
    if not len(rows):
        raise ValueError(f"{label}: there are no rows")
    return Table(label, rows, range(len(rows)), arrow=hasattr(rows, "features"))


def read(source: str, task: TaskConfig, split: str, key: str = "task.source") -> Table:
    """The rows of a source that is not generated. `key` is the setting that names it. Raises ValueError with the remedy."""
    where = f"{key} = {source!r}"
    match source_kind.kind(source):
        case "verifiers":
            return table(tasks_of(source, task, None if split == task.split else split).rows, source)
        case "benchmark":
            return _benchmark(source, task, key)
        case "function":
            return _call(source, task, key)
        case "file":
            return dataclasses.replace(table(rows_of(Path(source), where), source), arrow=source.endswith(".parquet"))
        case "saved":
            return _saved(source, split, where)
    _check_id(source, where)
    return _hugging_face(source, task, split, where)


def _check_id(source: str, where: str) -> None:
    """Raises ValueError for a file of an unsupported type in place of a dataset id."""
    path = Path(source)
    if path.is_file() or nearest(path.suffix, source_kind.SUFFIXES) or path.suffix in (".txt", ".tsv"):
        raise ValueError(f"{where}: files can be {', '.join(source_kind.SUFFIXES)}, not {path.suffix or 'this'}")


def _benchmark(source: str, task: TaskConfig, key: str) -> Table:
    name = source.removeprefix(source_kind.BENCHMARK)
    try:
        where, split, options = benchmarks.place(name, task.config)
    except ValueError as error:
        raise ValueError(f"{key} = {source!r}: {error}") from None
    if where.startswith(source_kind.BENCHMARK):
        raise ValueError(f"task.config.data = {where!r}: is a benchmark itself; name a file or a data set")
    packaged = benchmarks.named(name).packaged
    if not where and packaged is not None:
        raw = table(packaged(), "its package")
    else:
        kept = split if source_kind.has_splits(where) else TaskConfig.split
        raw = read(where, dataclasses.replace(task, config=options), kept, key)
    rows, left_out = benchmarks.made(name, (row for _, row in raw), task.config, raw.label)
    return Table(f"benchmark {name} ({raw.label})", rows, range(len(rows)), source, left_out)


def _call(source: str, task: TaskConfig, key: str) -> Table:
    function = load_function(source, key)
    if problem := unknown_arguments(function, task.config):
        raise ValueError(f"task.config = {without_secrets(task.config)!r}: {source} cannot be called with it: {problem}")
    try:
        rows = function(**task.config)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{key} = {source!r}: {source} raised {describe(error)}") from error
    return table(rows, source)


def _hugging_face(source: str, task: TaskConfig, split: str, where: str) -> Table:
    import datasets

    try:
        rows = datasets.load_dataset(source, split=split, **task.config)
    except Exception as error:
        given = f"split = {split!r} and task.config = {without_secrets(task.config)!r}"
        text = f"{where}: no data set could be loaded with {given}: {describe(error.__cause__ or error)}"
        if task.config and where.startswith("task.eval_source"):
            text += "; task.config is for task.source too: give rows that need other options as module:function"
        raise ValueError(text) from error
    return table(rows, f"{source} [{split}]")


def _saved(folder: str, split: str, where: str) -> Table:
    import datasets

    try:
        rows = datasets.load_from_disk(folder)
    except Exception as error:
        raise ValueError(f"{where}: the saved data set cannot be read: {describe(error)}") from error
    if not isinstance(rows, datasets.DatasetDict):
        if split != TaskConfig.split:
            raise ValueError(f"{where}: has no splits, so {split!r} is none of them; unset it")
        return table(rows, folder)
    if split not in rows:
        raise ValueError(f"{where}: has no split {split!r}{nearest(split, rows)}; its splits are {', '.join(rows)}")
    return table(rows[split], f"{folder} [{split}]")


def generate(source: str, task: TaskConfig, train: int, held_out: int) -> tuple[Table, Table]:
    """So many training and held-out items of a reasoning-gym task, from a subprocess. Warns of suspicious ones. Raises
    ValueError for an unknown task, bad options, or too few distinct items.
    """
    request = reasoning_gym.ItemsRequest(source, task.config, task.seed, train, held_out)
    process = Process("gspo.data.reasoning_gym_worker", request)
    items: dict[str, list[dict[str, Any]]] = {"train": [], "held out": []}
    try:
        while (message := process.receive(SILENCE)) != ["end", ""]:
            match message:
                case ["error", str(text)]:
                    raise ValueError(text)
                case ["note", str(text)]:
                    logger.warning(text)
                case [kind, item]:
                    items[kind].append(item)
    except TimeoutError:
        raise RuntimeError(f"{source}: the process that makes its items sent none for {SILENCE:.0f} s") from None
    except Lost as error:
        raise RuntimeError(f"{source}: the process that makes its items {error}") from None
    finally:
        process.kill()
    first, second = (Table(source, entries, range(len(entries))) for entries in items.values())
    return first, second
