"""The run folder: creating, resuming, and locking it against a second writer."""

from __future__ import annotations

import atexit
import dataclasses
import fcntl
import json
import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

from gspo.config.names import RESUME
from gspo.config.schema import Config
from gspo.runs import disk
from gspo.workers.processes import close_in_children

AnyConfig = TypeVar("AnyConfig", bound=Config)
logger = logging.getLogger(__name__)
FILES = ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl", "events.jsonl")
SMALLER = "micro_batches.json"  # written by ranks that ran out of memory (assembly/micro_batch_limit.py)
# Left by a run that ended before or during create: a folder with nothing else counts as unused.
_SKELETON = {".lock", ".config.toml.part", "checkpoints", SMALLER, f".{SMALLER}.part"}
# Of a run that ended before its first update; beside the logs of vLLM.
_REPLACED = {*FILES, "report.html", "figures", "tensorboard", "wandb", "run_id"}


def folder_of(dir: str, resume: bool) -> str:
    """The run folder that `log.dir` names. "auto" is the newest run of runs/run, runs/run-2, ..., to resume, else the one
    after the last of these.
    """
    if dir != "auto":
        return dir
    found = {path: re.fullmatch(r"run(?:-([2-9]|[1-9]\d+))?", path.name) for path in Path("runs").glob("run*")}
    used = [int(name[1] or 1) for path, name in found.items() if name and (not resume or (path / "config.toml").exists())]
    number = max(used, default=1) if resume else max(used, default=0) + 1
    return "runs/run" if number == 1 else f"runs/run-{number}"


def release(folder: Path) -> None:
    """Removes a folder that `placed` made and in which no run was made, and its parent if that is empty too."""
    with suppress(OSError):
        folder.rmdir()
        folder.parent.rmdir()


def placed(config: AnyConfig, resume: bool) -> AnyConfig:
    """`config` with a folder for `log.dir` = "auto", which the log tells: even from Python, if it is not runs/run. A new one
    is made at once, so that no other process takes it, and removed when this process ends if it is still empty. Raises
    ValueError if it cannot be made.
    """
    dir = folder_of(config.log.dir, resume)
    if dir == config.log.dir:
        return config
    while not resume:
        RunFolder(dir).check_unused()
        with suppress(FileExistsError):  # another process was faster
            Path(dir).mkdir(parents=True)
            atexit.register(release, Path(dir))
            break
        dir = folder_of(config.log.dir, resume)
    logger.log(logging.INFO if dir == "runs/run" else logging.WARNING, f"log.dir is not set: the run folder is {dir}")
    return dataclasses.replace(config, log=dataclasses.replace(config.log, dir=dir))


class RunFolder:
    """A folder that a single run writes to, made by `create` or `resume`. It is locked until `close` or the end of the
    process.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"
        self._lock: BinaryIO | None = None
        self._locks = True  # whether the file system has locks, as far as is known

    @classmethod
    def create(cls, dir: str | Path, config_toml: str) -> RunFolder:
        """Creates a run folder with `config_toml` in it, in place of a run that ended before its first update. Raises
        ValueError if the folder already holds anything else, RuntimeError if another process holds the lock.
        """
        folder = cls(dir)
        folder.check_unused()
        path = folder.path.absolute()
        new = [part for part in (path, *path.parents) if not part.exists()]
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            for made in new:
                disk.sync(made.parent)  # else a loss of power may take the whole folder
        except OSError as error:
            raise ValueError(f"log.dir = {str(dir)!r}: cannot make the run folder: {error}") from None
        folder._acquire_lock()
        try:
            folder.check_unused()  # again under the lock: another process may have been faster
            if folder._ended_at_once():
                logger.info(f"{dir}: replaces a run that ended before its first update")
                for left in [*(folder.path / name for name in _REPLACED), *folder.path.glob("vllm*.log")]:
                    shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
            disk.write_text(folder.config, config_toml)  # last and atomically: a folder with config.toml is complete
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def resume(cls, dir: str | Path) -> RunFolder:
        """Opens a run folder that `create` made. Raises ValueError if it is none, RuntimeError if another process holds the
        lock.
        """
        folder = cls(dir)
        if not folder.path.is_dir():
            raise ValueError(f"log.dir = {str(dir)!r}: no such run folder to resume; start it without {RESUME}")
        for part in (folder.config, folder.checkpoints):
            if not part.exists():
                raise ValueError(
                    f"log.dir = {str(dir)!r}: not a run folder, {part.name} is missing; give the folder of "
                    f"an earlier run, or start a new one without {RESUME}"
                )
        try:
            folder._acquire_lock()
        except OSError as error:
            raise ValueError(
                f"log.dir = {str(dir)!r}: cannot be written to ({error}); give this user the right, or resume a copy"
            ) from None
        return folder

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_free(self) -> None:
        """As check_unused, before anything is loaded. Raises RuntimeError if another process holds the lock."""
        if (self.path / ".lock").exists() and os.access(self.path / ".lock", os.W_OK):
            self._acquire_lock()
            self.close()
        self.check_unused()

    def check_unused(self) -> None:
        """Raises ValueError if the folder already holds a run, or anything else, or cannot be created."""
        nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            problem = "may not be written to" if nearest.is_dir() else "is a file"
            why = f"cannot make the run folder, {nearest} {problem}"
            raise ValueError(f"log.dir = {str(self.path)!r}: {why}; give another log.dir")
        others = [path for path in self.path.glob("*") if path.name not in _SKELETON]
        if (others or any(self.checkpoints.glob("*"))) and not self._ended_at_once():
            raise ValueError(
                f"log.dir = {str(self.path)!r}: the folder exists and is not empty; go on with that run by "
                f"{RESUME}, or give another log.dir"
            )

    def _ended_at_once(self) -> bool:
        """Whether the folder holds a run without an update in its first step and without a checkpoint, and nothing else.
        Never on a file system without locks, where such a run may be alive.
        """
        names = {path.name for path in self.path.glob("*")} - {path.name for path in self.path.glob("vllm*.log")}
        whole = {"config.toml", "checkpoints", *FILES} <= names <= {"config.toml"} | _SKELETON | _REPLACED
        if not whole or not self._locks or any(self.checkpoints.glob("*")):
            return False
        try:
            steps = [json.loads(line) for line in (self.path / "metrics.jsonl").read_bytes().splitlines()]
            return all(not step["step"] or (step["step"] == 1 and step["updates"] == 0) for step in steps)
        except (OSError, ValueError, KeyError, TypeError):  # not what a run writes
            return False

    def _acquire_lock(self) -> None:
        """Take the lock. The kernel frees it when the process ends, however it ends."""
        lock = open(self.path / ".lock", "ab", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RuntimeError(
                f"log.dir = {str(self.path)!r}: another process is writing to this run folder; wait for it "
                "or stop it, or give another log.dir"
            ) from None
        except OSError:
            self._locks = False
            logger.warning(f"{self.path}: this file system has no locks: nothing stops a second run in this folder")
        self._lock = lock
        close_in_children(lock)
