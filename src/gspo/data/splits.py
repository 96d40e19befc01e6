"""The training and held-out rows of a task, before any of them is encoded."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any

from gspo.config.import_function import load_function, unknown_arguments
from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import BENCHMARK, VERIFIERS, eval_config, same_place
from gspo.config.stages import Stages
from gspo.config.training import EvalConfig
from gspo.data.columns import cell, judged_by
from gspo.data.loaders import Table, generate, read, table
from gspo.data.reasoning_gym import PREFIX

GENERATED = 2000
"""Training items of a generated task if task.size is unset."""


def read_tables(task: TaskConfig, eval: EvalConfig, rows: Any = None, eval_rows: Any = None) -> tuple[Table, Table]:
    """The training and held-out rows, before any is encoded. Raises ValueError if there are none."""
    own_eval = (
        eval_rows is None
        and (task.eval_source is None or same_place(task.source, task.eval_source))
        and task.eval_split is None
    )
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
    """Checks that the first row of each table has the columns for the prompt and the rewards. Raises ValueError. `needs`:
    columns required by rewards, each with the configuration key that names it.
    """
    for source, which in zip(tables, ("train", "eval")):
        _check_first_row(source, prompt_column(which, task), needs)


def _check_first_row(source: Table, prompt: str, needs: Mapping[str, str]) -> None:
    for number, row in source.part(0, 1):
        try:
            cell(row, prompt, "task.prompt_column")
            others = {name: value for name, value in row.items() if name != prompt or prompt == "question"}
            for column, key in needs.items():
                judged_by(others, column, key, source.benchmark)
        except ValueError as error:
            raise ValueError(f"{source.label}, row {number}: {error}") from None


def read_stages(task: TaskConfig, stages: Stages, needs: Mapping[str, str]) -> dict[int, Table]:
    """The rows of each stage with its own source, by stage number. Raises ValueError. `needs`: as in check_columns."""
    tables = {}
    for number, stage in enumerate(stages):
        if stage.source is not None:
            tables[number] = _read_stage(stage.source, task, f"stage[{number}].source")
            _check_first_row(tables[number], prompt_column("train", of_stage(task, stage.source)), needs)
    return tables


def _read_stage(source: str, task: TaskConfig, key: str) -> Table:
    own = of_stage(task, source)
    if not source.startswith(PREFIX):
        return read(source, own, task.split, key)
    try:
        return generate(source, own, task.size or GENERATED, 0)[0]
    except ValueError as error:  # its message names task.source
        raise ValueError(f"{key} = {source!r}: {str(error).removeprefix(f'task.source = {source!r}: ')}") from None


def of_stage(task: TaskConfig, source: str) -> TaskConfig:
    """The task of a stage with its own source."""
    return dataclasses.replace(task, source=source, eval_source=None, eval_split=None, config={})


def refresh_function(source: str, step: int) -> Callable[..., Any]:
    """The function refresh.source, to be called with `step`. Raises ValueError if it is missing or does not take it."""
    function = load_function(source, "refresh.source")
    if problem := unknown_arguments(function, {"step": step}):
        raise ValueError(f"refresh.source = {source!r}: cannot be called with step = {step}: {problem}")
    return function


def _held_out(task: TaskConfig, eval: EvalConfig, eval_rows: Any) -> Table:
    source = task.eval_source or task.source
    task = dataclasses.replace(task, config=eval_config(task))
    if eval_rows is not None:
        rows = table(eval_rows, "the held-out data set")
    elif source.startswith(PREFIX):
        return generate(source, task, 0, eval.num_prompts)[1]
    else:
        key = "task.eval_source" if task.eval_source else "task.source"
        rows = read(source, task, task.eval_split or task.split, key)
    return rows.part(0, eval.num_prompts)


def prompt_column(which: str, task: TaskConfig) -> str:
    """The column with the prompt, in training rows ("train") or held-out rows ("eval")."""
    source = (task.eval_source or task.source) if which == "eval" else task.source
    return {PREFIX: "question", VERIFIERS: "prompt", BENCHMARK: "prompt"}.get(
        source.partition(":")[0] + ":", task.prompt_column
    )


def plain(value: Any) -> Any:
    """A cell as JSON-compatible data: times as ISO text, durations in seconds, decimals as text, arrays as lists."""
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
