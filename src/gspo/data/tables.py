"""The rows of a task: those to train on and those held out, before any of them is encoded."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from typing import Any

from gspo.config.near import nearest
from gspo.config.origin import BENCHMARK, VERIFIERS
from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.config.values import type_of
from gspo.data.reasoning_gym import PREFIX
from gspo.data.sources import Table, generate, read, table

GENERATED = 2000
"""Training items of a generated task when task.size is unset."""


def read_tables(task: TaskConfig, eval: EvalConfig, rows: Any = None, eval_rows: Any = None) -> tuple[Table, Table]:
    """The rows to train on and those held out, before any is encoded. Raises ValueError where there are none to be had."""
    own_eval = eval_rows is None and task.eval_source in (None, task.source) and task.eval_split is None
    if rows is None and not task.source:
        raise ValueError("task.source is required: set it to where the prompts come from")
    if rows is None and task.source.startswith(PREFIX):
        train, held_out = generate(task.source, task, task.size or GENERATED, eval.num_prompts if own_eval else 0)
        return train, held_out if own_eval else _held_out(task, eval, eval_rows)
    train = table(rows, "the data set") if rows is not None else read(task.source, task, task.split)
    if not eval.num_prompts:
        return train, train.part(len(train), len(train))
    if own_eval:
        cut = len(train) - min(eval.num_prompts, len(train) // 10)
        if cut == len(train) and eval.every:
            raise ValueError(
                f"{train.label}: {len(train)} rows are too few to hold some out for evaluation; give "
                "held-out prompts as task.eval_source, or set eval.every = 0"
            )
        return train.part(0, cut), train.part(cut, len(train))
    return train, _held_out(task, eval, eval_rows)


def check_columns(tables: tuple[Table, Table], task: TaskConfig, needs: Mapping[str, str]) -> None:
    """Whether the first row of each table has the columns for the prompt and for the rewards: seen before any model is.

    needs: columns that rewards ask for, each with the configuration key that names it. Raises ValueError.
    """
    for source, which in zip(tables, ("train", "eval")):
        for number, row in source.part(0, 1):
            try:
                prompt = prompt_column(which, task)
                cell(row, prompt, "task.prompt_column")
                others = {name: value for name, value in row.items() if name != prompt or prompt == "question"}
                for column, key in needs.items():
                    cell(others, column, key, " with the right answer")
            except ValueError as error:
                raise ValueError(f"{source.label}, row {number}: {error}") from None


def _held_out(task: TaskConfig, eval: EvalConfig, eval_rows: Any) -> Table:
    source = task.eval_source or task.source
    if eval_rows is not None:
        rows = table(eval_rows, "the held-out data set")
    elif source.startswith(PREFIX):
        return generate(source, task, 0, eval.num_prompts)[1]
    else:
        key = "task.eval_source" if task.eval_source else "task.source"
        rows = read(source, task, task.eval_split or task.split, key)
    return rows.part(0, eval.num_prompts)


def prompt_column(which: str, task: TaskConfig) -> str:
    """The column with the prompt, in the rows to train on ("train") or in those held out ("eval")."""
    source = (task.eval_source or task.source) if which == "eval" else task.source
    return {PREFIX: "question", VERIFIERS: "prompt", BENCHMARK: "prompt"}.get(
        source.partition(":")[0] + ":", task.prompt_column
    )


def cell(row: Mapping[str, Any], column: str, key: str, what: str = "") -> Any:
    """What stands in a column of a row. `key` names the column, `what` is in it. Raises ValueError where there is none."""
    if not isinstance(row, Mapping):
        raise ValueError(f"is {type_of(row)}, expected a dict of columns")
    if column not in row:
        names = list(map(str, row))
        found = ", ".join(names) or "(none)"
        raise ValueError(f"there is no column {column!r}{what}{nearest(column, names)}; set {key} to one of: {found}")
    return row[column]


def plain(value: Any) -> Any:
    """A cell as data that JSON can hold: dates and times as ISO text, durations in seconds, exact decimals as text, and
    arrays as lists. Anything else stays as it is.
    """
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value.tolist()) if type(value).__module__ == "numpy" else value
