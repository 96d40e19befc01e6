"""Opens a run folder, new or to resume: lock, log, screen, and the state to continue from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gspo.config.files import load_of_run, to_dict, to_toml
from gspo.config.import_function import describe
from gspo.config.names import RESUME
from gspo.config.resume import ON_PURPOSE, check_allowed, same_run
from gspo.config.schema import Config
from gspo.runs import checkpoint, disk
from gspo.runs.folder import RunFolder, placed, release
from gspo.runs.log import RunLog, recorded
from gspo.runs.progress import Progress
from gspo.runs.trackers import open_trackers
from gspo.safe import without_secrets

AnyConfig = TypeVar("AnyConfig", bound=Config)


@contextmanager
def claimed(
    config: AnyConfig, resume: bool, allowed: Collection[str] = ()
) -> Iterator[tuple[AnyConfig, RunFolder | None, Path | None]]:
    """Yields the settings, with their run folder and the date of a run to resume, its folder, locked before anything is
    read, and its newest checkpoint (None, None without one). `allowed`: settings that may differ from those of the run on
    purpose. Raises ValueError for others, RuntimeError for a damaged checkpoint.
    """
    check_allowed(allowed)
    if allowed and not resume:
        raise ValueError(f"allow = {next(iter(allowed))!r}: has no effect without {RESUME}; leave it out")
    given, config = config, placed(config, resume)
    if not resume:
        RunFolder(config.log.dir).check_free()
        try:
            yield config, None, None
        finally:
            if config is not given:
                release(Path(config.log.dir))
        return
    with RunFolder.resume(config.log.dir) as folder:
        checkpoint.sweep(folder)
        last = checkpoint.latest(folder.checkpoints)
        if last is not None:
            checkpoint.check(last)
        saved = saved_settings(folder, last)
        config = dataclasses.replace(config, task=dataclasses.replace(config.task, date=config.task.date or saved.task.date))
        same_run(saved, config, allowed, last_sampled_step(config, last))
        yield config, folder, last


def saved_settings(folder: RunFolder, last: Path | None) -> Config:
    """The settings of the run so far, from its last checkpoint: config.toml in the run folder may have been edited by hand.
    Raises ValueError, naming the file.
    """
    path = folder.config if last is None else last / checkpoint.CONFIG
    return load_of_run(path, "The settings of this run were changed: put them back as they were")


def last_sampled_step(config: Config, last: Path | None) -> int:
    """The last step for which the run to resume may have sampled ahead, from its newest checkpoint, which may have been
    written when the engine was lost in the next step; 0 without one.
    """
    ahead = config.rollout.max_staleness
    return 0 if last is None else int(last.name.removeprefix("step_")) + ahead + (ahead > 0)


@contextmanager
def open_run(
    config: Config, folder: RunFolder | None, last: Path | None, title: str, command: str = "train"
) -> Iterator[tuple[RunLog, Progress, dict[str, Any] | None]]:
    """Yields the log and screen of a run, and the state to continue from, if any. folder: that of a run to resume; None for
    a new run. last: the checkpoint to resume from. command: "serve" for an unknown number of steps.
    """
    with ExitStack() as stack:
        toml, changes = to_toml(config), []
        if folder is None:
            folder = stack.enter_context(RunFolder.create(config.log.dir, toml))
        else:
            changes = same_run(saved_settings(folder, last), config, ON_PURPOSE, last_sampled_step(config, last))
        disk.write_text(folder.config, toml)
        state = checkpoint.load_state(last) if last is not None else None
        start = state["step"] if state else 0
        settings = without_secrets(to_dict(config))
        trackers = open_trackers(config.log.trackers, folder.path, config.log.project, settings, start)
        screen = stack.enter_context(Progress(None if command == "serve" else config.train.steps, start, title=title))
        log = stack.enter_context(RunLog(folder, trackers, screen))
        log.step = start
        log.rewind(state["log"] if state else {})
        for change in changes:
            log.note(f"goes on with {change}")
        stack.enter_context(recorded(log.record))
        try:
            yield log, screen, state
        except Exception as error:  # for the report
            log.failed(describe(error))
            raise
