"""The kind of source that `task.source` or `task.eval_source` names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gspo.config.rollout import TaskConfig

GIVEN = "(given from Python)"
VERIFIERS = "verifiers:"
GENERATED = "reasoning_gym:"
BENCHMARK = "benchmark:"
SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SAVED = ("dataset_dict.json", "state.json")
"""Files that identify a folder written by `save_to_disk` of datasets, with several splits or with one."""


def kind(source: str) -> str:
    """The kind of a source: `given` (rows from Python), `verifiers`, `generated` (reasoning-gym), `benchmark`, `function`,
    `file`, `saved` (a folder written by `save_to_disk`), or `hub` (for `datasets.load_dataset`: an id, or another folder).
    """
    if source == GIVEN:
        return "given"
    for prefix, name in ((VERIFIERS, "verifiers"), (GENERATED, "generated"), (BENCHMARK, "benchmark")):
        if source.startswith(prefix):
            return name
    if FUNCTION.fullmatch(source):
        return "function"
    path = Path(source)
    if path.suffix in SUFFIXES:
        return "file"
    return "saved" if any((path / name).is_file() for name in SAVED) else "hub"


def same_place(source: str, other: str | None) -> bool:
    """Whether two names are of one source: `rows.jsonl` is `./rows.jsonl`."""
    if other is None or source == other:
        return source == other
    return {kind(source), kind(other)} <= {"file", "saved"} and os.path.realpath(source) == os.path.realpath(other)


def eval_config(task: TaskConfig) -> dict[str, Any]:
    """The options of the held-out rows' source: task.config, unless that is for a training source of another kind, or for
    another benchmark.
    """
    own, other = kind(task.source), task.eval_source or task.source
    shared = own in ("given", "file", "saved", kind(other)) and (own != "benchmark" or task.source == other)
    return task.config if shared else {}


def has_splits(source: str) -> bool:
    """Whether a source may have splits to choose from."""
    return kind(source) in ("verifiers", "hub", "saved")


def in_environment(task: TaskConfig) -> bool:
    """Whether prompts are played in an environment, which computes the reward itself."""
    return task.environment is not None or task.source.startswith(VERIFIERS)
