"""Tasksets of the library `verifiers`, with their tasks as rows of a source."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any, NamedTuple

from gspo.config.import_function import describe, find_here
from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import VERIFIERS


class Tasks(NamedTuple):
    """The tasks of a taskset by a fingerprint of their data, and rows of prompts and fingerprints."""

    by_content: dict[str, Any]
    rows: list[dict[str, Any]]


def taskset_options(source: str, task: TaskConfig, split: str | None) -> dict[str, Any]:
    """The options of the taskset, with its id, and its split unless that is None. Raises ValueError."""
    options = task.config.get("taskset", {})
    if not isinstance(options, dict):
        raise ValueError(f"task.config.taskset = {options!r}: expected a table with the options of the taskset")
    if "id" in options:
        raise ValueError(f"task.config.taskset.id = {options['id']!r}: the source names it, as {VERIFIERS}{options['id']}")
    return options | ({} if split is None else {"split": split}) | {"id": source.removeprefix(VERIFIERS)}


def tasks_of(source: str, task: TaskConfig, split: str | None = None) -> Tasks:
    """The tasks of the source `verifiers:ID`; task.size limits an endless taskset. Raises ValueError."""
    options = taskset_options(source, task, split)
    return _loaded(source, json.dumps(options, sort_keys=True, default=str), task.size)


@lru_cache(maxsize=4)  # read for the rows, then again for the tasks to play
def _loaded(source: str, options: str, size: int | None) -> Tasks:
    import verifiers.v1 as vf

    parsed = json.loads(options)
    check_installed(source)
    try:
        taskset = vf.load_taskset(vf.taskset_config_type(parsed["id"]).model_validate(parsed))
        if not taskset.bounded:
            if size is None:
                raise ValueError("it is endless: set task.size")
            taskset = taskset.take(size + size // 9 + 1)  # a tenth is held out
        tasks = list(taskset)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{source}: its tasks could not be loaded: {describe(error)}") from error
    keys = [fingerprint(task.data) for task in tasks]
    rows = [{"prompt": messages_of(task.data), "task": key} for key, task in zip(keys, tasks)]
    return Tasks(dict(zip(keys, tasks)), rows)


def check_installed(source: str) -> None:
    """Raises ValueError unless a taskset of this name is installed; the current folder is searched first."""
    import verifiers.v1 as vf

    name, module = source.removeprefix(VERIFIERS), None
    try:
        find_here(name.rsplit("/", 1)[-1].split("@")[0].replace("-", "_").lower())  # as verifiers names its module
        module = vf.import_taskset(name)
        vf.taskset_config_type(name)
    except (Exception, SystemExit) as error:
        if hasattr(module, "load_environment"):
            raise ValueError(
                f"{source}: it has a load_environment, as environments for verifiers before 0.4 do: install a version of it "
                "that exports a Taskset"
            ) from None
        raise ValueError(f"{source}: {describe(error)}") from error


def fingerprint(data: Any) -> str:
    """A hash of a task's content, equal for tasks with the same content."""
    content = data.model_dump(mode="json", exclude={"idx"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def messages_of(data: Any) -> list[dict[str, Any]]:
    """The initial messages of a task; its description or name if the environment's user speaks first."""
    begin = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
    prompt = data.prompt
    if prompt is None:
        prompt = data.description or data.name or f"task {data.idx}"
    if isinstance(prompt, str):
        return [*begin, {"role": "user", "content": prompt}]
    return [*begin, *(message.model_dump(mode="json", exclude_none=True) for message in prompt)]
