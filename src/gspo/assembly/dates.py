"""The day that the chat template of a run writes: that on which the run began."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import Any

from gspo.config.files import load
from gspo.config.schema import Config
from gspo.data.chat_template import writes_date
from gspo.runs import checkpoint


def dated(config: Config, tokenizer: Any) -> Config:
    """`config` with the day that the chat template writes. Raises ValueError for a task.date that no template writes."""
    written = config.task.template == "auto" and writes_date(tokenizer)
    if config.task.date is not None and not written and "model" not in config.reward.functions:
        raise ValueError(f"task.date = {config.task.date!r} has no effect: the chat template writes no date; leave it out")
    return on_date(config) if written else config


def on_date(config: Config) -> Config:
    """`config` with a task.date: its own or today."""
    return with_date(config, config.task.date or datetime.date.today().isoformat())


def of_its_day(config: Config) -> Config:
    """`config` with the task.date of the run whose folder holds the model, unless it has its own."""
    beside = Path(config.model.path).parent / checkpoint.CONFIG
    if config.task.date is not None or not beside.is_file():
        return config
    try:
        return with_date(config, load(beside).task.date)
    except ValueError:  # of another program
        return config


def with_date(config: Config, date: str | None) -> Config:
    """`config` with this task.date."""
    return dataclasses.replace(config, task=dataclasses.replace(config.task, date=date))
