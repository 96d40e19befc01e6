"""The run folder and what is written into it: metrics, rollouts and events, one JSON object a line.

A line is flushed when it is written, so a killed run loses nothing that it has said. A checkpoint remembers
how long each file was; resuming cuts them back to that length, and the steps done again are written again.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

FILES = ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl", "events.jsonl")
_SKELETON = {
    ".lock",
    "config.toml.part",
    "checkpoints",
    "figures",
}  # what a kill in the middle of create leaves


class Tracker(Protocol):
    """Whoever is told the metrics of each step: see trackers.py."""

    name: str

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Take over the numbers of one step."""
        ...

    def close(self) -> None:
        """Write out what is still held back."""
        ...


class Screen(Protocol):
    """Whoever shows the run while it runs: see progress.py."""

    def step(self, metrics: dict[str, Any]) -> None:
        """Show the metrics of a step."""
        ...

    def note(self, text: str) -> None:
        """Show a line that stays."""
        ...


class RunFolder:
    """A folder that one run writes to, and no other process at the same time.

    `path` holds config.toml, metrics.jsonl, rollouts.jsonl, events.jsonl, checkpoints/, figures/ and, in the
    end, report.html. Make one with `create` or `resume`; `close` lets go of it, and so does the end of the
    process.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"
        self.figures = self.path / "figures"
        self._lock: BinaryIO | None = None

    @classmethod
    def create(cls, dir: str | Path, config_toml: str) -> RunFolder:
        """A new run folder with `config_toml` in it.

        Raises ValueError where the folder holds anything already, RuntimeError where another process has it.
        """
        folder = cls(dir)
        folder.check_unused()
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            folder.figures.mkdir(exist_ok=True)
        except OSError as error:
            raise ValueError(f"log.dir = {str(dir)!r}: cannot make the run folder: {error}") from None
        folder._hold()
        try:
            folder.check_unused()  # someone may have been faster
            part = folder.path / "config.toml.part"
            part.write_text(config_toml, encoding="utf-8")
            part.replace(folder.config)  # last, and at once: a folder with a config.toml is a whole one
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def resume(cls, dir: str | Path) -> RunFolder:
        """A run folder that `create` made before.

        Raises ValueError where it is none, RuntimeError where another process writes to it.
        """
        folder = cls(dir)
        if not folder.path.is_dir():
            raise ValueError(f"log.dir = {str(dir)!r}: no such run folder to resume; start it without --resume")
        for part in (folder.config, folder.checkpoints):
            if not part.exists():
                raise ValueError(
                    f"log.dir = {str(dir)!r}: not a run folder, {part.name} is missing; give the folder of "
                    "an earlier run, or start a new one without --resume"
                )
        folder._hold()
        folder.figures.mkdir(exist_ok=True)
        return folder

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_unused(self) -> None:
        """Raises ValueError where the folder holds anything already."""
        nearest = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK):
            what = "may not be written to" if nearest.is_dir() else "is a file"
            why = f"cannot make the run folder, {nearest} {what}"
            raise ValueError(f"log.dir = {str(self.path)!r}: {why}; give another --log.dir")
        if not self.path.exists():
            return
        names = {entry.name for entry in self.path.iterdir()}
        begun = any(any(p.iterdir()) for p in (self.checkpoints, self.figures) if p.is_dir())
        if names - _SKELETON or begun:
            raise ValueError(
                f"log.dir = {str(self.path)!r}: the folder exists and is not empty; go on with that run by "
                "--resume, or give another --log.dir"
            )

    def _hold(self) -> None:
        """Take the lock. The kernel frees it when the process ends, however it ends."""
        lock = open(self.path / ".lock", "ab", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RuntimeError(
                f"log.dir = {str(self.path)!r}: another process is writing to this run folder; wait for it "
                "or stop it, or give another --log.dir"
            ) from None
        except OSError:
            pass  # a file system without locks
        self._lock = lock
        _held.add(lock)


_held: weakref.WeakSet[BinaryIO] = weakref.WeakSet()


def _let_go_in_child() -> None:
    """A forked child shares the lock: had it a copy, it would hold the folder after its parent was killed."""
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_let_go_in_child)


class RunLog:
    """Writes what a run does into its folder, and tells the trackers and the screen.

    `step` is the step that events belong to; `metrics` sets it, and the trainer may.
    """

    def __init__(self, folder: RunFolder, trackers: Sequence[Tracker] = (), progress: Screen | None = None) -> None:
        self.folder = folder
        self.step = 0
        self._trackers = list(trackers)
        self._progress = progress
        self._files = {name: open(folder.path / name, "ab") for name in FILES}  # noqa: SIM115
        self._warned: set[str] = set()
        self._written = self._old_warnings()

    def metrics(self, metrics: dict[str, Any]) -> None:
        """Write the metrics of a step: `step`, and numbers by name. NaN and infinities become null."""
        self.step = int(metrics.get("step", self.step))
        self._write("metrics.jsonl", [metrics])
        numbers = {k: float(v) for k, v in metrics.items() if k != "step" and _is_number(v)}
        for tracker in list(self._trackers):
            try:
                tracker.log(numbers, self.step)
            except Exception as error:  # a tracker is a guest: the run goes on without it
                self._trackers.remove(tracker)
                self.warn(f"tracker {tracker.name} failed and gets no more metrics: {error}")
        if self._progress is not None:
            self._progress.step(metrics)

    def rollouts(self, rollouts: Iterable[dict[str, Any]]) -> None:
        """Write rollouts, one object each."""
        self._write("rollouts.jsonl", rollouts)

    def evaluations(self, rollouts: Iterable[dict[str, Any]]) -> None:
        """Write held-out replies, one object each."""
        self._write("evaluations.jsonl", rollouts)

    def event(self, kind: str, text: str) -> None:
        """Write `{"step", "kind", "text"}` into events.jsonl, and nothing on the screen."""
        self._write("events.jsonl", [{"step": self.step, "kind": kind, "text": text}])

    def note(self, text: str, kind: str = "info") -> None:
        """Print a line, and write it as an event."""
        self.event(kind, text)
        self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning and write it as an event, the first time that it is given.

        A resumed run prints again what it warned of before, and does not write it twice.
        """
        if text in self._warned:
            return
        self._warned.add(text)
        if text not in self._written:
            self._written.add(text)
            self.event("warning", text)
        self._print(f"warning: {text}")

    def position(self) -> dict[str, int]:
        """The length in bytes of each file, for a checkpoint. What was written so far is on the disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}

    def rewind(self, position: dict[str, int]) -> None:
        """Cut the files back to the `position` of a checkpoint; `{}` empties them.

        Raises RuntimeError, before anything is cut, where a file is shorter than it was.
        """
        for name, file in self._files.items():
            size, wanted = os.fstat(file.fileno()).st_size, position.get(name, 0)
            if size < wanted:
                raise RuntimeError(
                    f"{self.folder.path / name} has {size} bytes, but the checkpoint was saved at {wanted}: "
                    "lines are lost. Restore the file, or start anew from the checkpoint's model"
                )
        for name, file in self._files.items():
            file.truncate(position.get(name, 0))
            os.fsync(file.fileno())
        self._written = self._old_warnings()

    def close(self) -> None:
        """Close the files and the trackers. The folder stays held until its own `close`."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:
                self.warn(f"tracker {tracker.name} failed to close: {error}")
        self._trackers = []
        for file in self._files.values():
            file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        file = self._files[name]
        for row in rows:
            file.write(to_json(row))
        file.flush()

    def _print(self, text: str) -> None:
        if self._progress is not None:
            self._progress.note(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def _old_warnings(self) -> set[str]:
        found = set()
        for line in (self.folder.path / "events.jsonl").read_bytes().split(b"\n"):
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a half-written last line, before it is cut off
            if event["kind"] == "warning":
                found.add(event["text"])
        return found


def to_json(row: dict[str, Any]) -> bytes:
    """One line of JSON, newline included. Tensors and arrays become lists; NaN and infinities become null."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)
    # Half a surrogate pair is no UTF-8; its backslash form is its JSON escape.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return _finite(value.tolist()) if hasattr(value, "tolist") else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
