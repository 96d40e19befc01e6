"""Checks what settings name on this machine, before torch is imported, which takes seconds."""

from __future__ import annotations

from pathlib import Path

from gspo.config.import_function import check_module
from gspo.config.local_model import check_folder_exists
from gspo.config.needs import place
from gspo.config.schema import Config
from gspo.config.source_kind import GIVEN, eval_config, kind
from gspo.data.files import rows_of
from gspo.runs.folder import RunFolder


def check_places(config: Config, command: str, resume: bool = False) -> None:
    """Raises ValueError for a model folder, a file of rows or a module that is not there, and for objects of a Python call,
    which no setting names. resume: the model is that of a checkpoint.
    """
    function = "evaluate" if command == "eval" else command
    task, model = config.task, config.model
    for key, value, remedy in (
        ("task.source", task.source, "set --task.source and --reward.functions to module:function"),
        ("model.path", model.path, "set --model.path to a folder, such as model/ of the run"),
    ):
        if value == GIVEN and not (resume and key == "model.path"):
            given = "it was an object of a Python call, which config.toml cannot hold, as its rewards may have been"
            raise ValueError(f"{key} = {value!r}: {given}: use gspo.{function}, or {remedy}")
    if not resume:
        check_folder_exists(model.path)
    read = [("task.source", task.source, task.config)]
    if command != "sft" and config.eval.num_prompts:
        read.append(("task.eval_source", task.eval_source or "", eval_config(task)))
    for key, source, options in read:
        where = place(source, options)
        if kind(where) == "file" and not Path(where).exists():
            rows_of(Path(where), f"{key} = {where!r}")  # raises
        if where.partition(":")[0].endswith(".py") or kind(where) == "function":
            check_module(where, key)
    for name in config.reward.functions if command in ("train", "eval") else ():
        if ":" in name:
            check_module(name, "reward.functions")


def check_run_folder(dir: str, resume: bool) -> None:
    """Raises ValueError or RuntimeError if a run cannot begin in this folder, or be resumed."""
    if resume:
        RunFolder.resume(dir).close()
    else:
        RunFolder(dir).check_free()
