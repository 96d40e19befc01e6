"""Writes the metrics, rollouts and events of a run into its folder, one JSON object per line.

Lines are flushed as they are written, so a killed run loses none. A checkpoint stores the length of each file; resuming
truncates the files to that length, and repeated steps are written again.

Notes and warnings are log records of the logger "gspo" as well. The records of other modules become events too (`recorded`).
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard

from gspo.runs import disk
from gspo.runs.folder import FILES, RunFolder
from gspo.safe import shorten, without_logins

logger = logging.getLogger(__name__)
COMPLETIONS = "rollouts.jsonl", "evaluations.jsonl"
PROMPT_SHOWN = 2000
"""Characters of a prompt that are shown; a longer one loses its middle."""
SEPARATORS = str.maketrans({c: f"\\u{ord(c):04x}" for c in "\u0085\u2028\u2029"})


class RunLog:
    """Writes what a run does into its folder, and forwards the metrics to the trackers (runs/trackers.py) and the live view
    (runs/progress.py). `step` is the step that events belong to; `metrics` sets it, and the trainer may.
    """

    def __init__(self, folder: RunFolder, trackers: Sequence[Any] = (), progress: Any = None) -> None:
        self.folder = folder
        self.step = 0
        self._trackers = list(trackers)
        self._progress = progress
        self._files = {name: open(folder.path / name, "ab") for name in FILES}  # noqa: SIM115
        self._warned: set[str] = set()
        self._prompted = False
        self._written = dict.fromkeys(self._old_warnings(), self.step)

    def metrics(self, metrics: dict[str, Any]) -> None:
        """Write the metrics of a step: `step`, and numbers by name. NaN and infinities become null."""
        self.step = max(self.step, int(metrics.get("step", 0)))  # agents may log for an earlier step
        self._write("metrics.jsonl", [metrics])
        numbers = {k: float(v) for k, v in metrics.items() if k != "step" and is_number(v)}
        for tracker in list(self._trackers):
            try:
                tracker.log(numbers, self.step)
            except Exception as error:  # the run goes on without the tracker
                self._trackers.remove(tracker)
                self.warn(f"tracker {tracker.name} failed and gets no more metrics: {error}")
        if self._progress is not None:
            self._progress.step(metrics)

    def rollouts(self, rollouts: Iterable[dict[str, Any]]) -> None:
        """Write rollouts, one object each."""
        self._write("rollouts.jsonl", rollouts)

    def evaluations(self, rollouts: Iterable[dict[str, Any]]) -> None:
        """Write held-out completions, one object each."""
        self._write("evaluations.jsonl", rollouts)

    def event(self, kind: str, text: str) -> None:
        """Write `{"step", "kind", "text"}` into events.jsonl. In the log it is a debug message."""
        self._event(kind, text)
        logger.debug(without_logins(text))

    def prompt(self, text: str, tokens: int) -> None:
        """Log a prompt of so many tokens, with its special tokens, as an event of its own kind. Only the first call has an
        effect.
        """
        if not self._prompted:
            self._prompted = True
            self._event("prompt", shorten(text, PROMPT_SHOWN))
            logger.info(without_logins(prompt_text(text, tokens)))

    def failed(self, text: str) -> None:
        """Write the error that ends the run as an event, if the disk allows. The caller prints it."""
        with suppress(disk.SaveError):
            self._event("error", text)

    def note(self, text: str) -> None:
        """Write an event, and log it at level INFO."""
        self._event("info", text)
        logger.info(without_logins(text))

    def warn(self, text: str, aloud: bool = True) -> None:
        """Write a warning as an event, once a step, and log it the first time it occurs; a resumed run logs it again.
        `aloud=False` only writes it, for a text that was logged before in similar words.
        """
        self._warning(text)
        if text not in self._warned:
            self._warned.add(text)
            if aloud:
                logger.warning(without_logins(text))

    def record(self, record: logging.LogRecord) -> None:
        """Write a log record of another module as an event: a warning, or info."""
        if record.name == logger.name:  # written already
            return
        if record.levelno >= logging.WARNING:
            self._warning(record.getMessage())
        else:
            self._event("info", record.getMessage())

    def position(self) -> dict[str, int]:
        """The length in bytes of each file, for a checkpoint. Everything written so far is synced to disk first."""
        for name, file in self._files.items():
            with disk.writing(self.folder.path / name):
                file.flush()
                os.fsync(file.fileno())
                disk.sync(self.folder.path)  # its name
        return {name: os.fstat(file.fileno()).st_size for name, file in self._files.items()}

    def rewind(self, position: dict[str, int]) -> None:
        """Truncate the files to the `position` of a checkpoint; `{}` empties them. Raises RuntimeError, before anything is
        truncated, if a file is shorter than it was at the checkpoint, and SaveError. Completions may be missing, deleted to
        make room: only the report reads them.
        """
        for name, file in self._files.items():
            size, saved_size = os.fstat(file.fileno()).st_size, position.get(name, 0)
            if size < saved_size and name in COMPLETIONS:
                logger.warning(f"{self.folder.path / name} has lost lines: the report lacks completions from before")
            elif size < saved_size:
                raise RuntimeError(
                    f"{self.folder.path / name} has {size} bytes, but the checkpoint was saved at {saved_size}: "
                    "lines are lost. Restore the file, or start anew from the checkpoint's model"
                )
        for name, file in self._files.items():
            with disk.writing(self.folder.path / name):
                file.truncate(min(position.get(name, 0), os.fstat(file.fileno()).st_size))
                os.fsync(file.fileno())
        self._written = dict.fromkeys(self._old_warnings(), self.step)

    def close(self) -> None:
        """Close the files and the trackers. The folder stays locked until its own `close`."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:
                self.warn(f"tracker {tracker.name} failed to close: {error}")
        self._trackers = []
        for file in self._files.values():
            with suppress(OSError):  # a write that the disk refused was reported when it failed
                file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        lines = [to_json(row) for row in rows]
        with disk.writing(self.folder.path / name):
            self._files[name].writelines(lines)
            self._files[name].flush()

    def _event(self, kind: str, text: str) -> None:
        self._write("events.jsonl", [{"step": self.step, "kind": kind, "text": without_logins(text)}])

    def _warning(self, text: str) -> None:
        text = without_logins(text)
        if self.step > self._written.get(text, -1):
            self._written[text] = self.step
            self._event("warning", text)

    def _old_warnings(self) -> set[str]:
        texts: set[str] = set()
        for line in (self.folder.path / "events.jsonl").read_bytes().split(b"\n"):
            with suppress(ValueError):  # a half-written last line, not truncated yet
                event = json.loads(line)
                texts |= {event["text"]} if event["kind"] == "warning" else set()
        return texts


def prompt_text(text: str, tokens: int) -> str:
    """A prompt of so many tokens with its special tokens, for the terminal."""
    return f"a prompt as the model reads it, {tokens} tokens:\n{shorten(text, PROMPT_SHOWN)}"


class _RecordHandler(logging.Handler):
    """Passes records to a function, and from level `shown` on to the handlers that would get them without it."""

    def __init__(self, take: Callable[[logging.LogRecord], None], shown: int) -> None:
        super().__init__(logging.INFO)
        self._take, self._shown = take, shown

    def emit(self, record: logging.LogRecord) -> None:
        self._take(record)
        if record.levelno >= self._shown:
            logging.getLogger().callHandlers(record)


@contextmanager
def recorded(take: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Passes gspo's log records from level INFO on to `take`, even if logging is set up to show fewer of them."""
    package = logging.getLogger("gspo")
    outermost, level = package.propagate, package.level
    handler = _RecordHandler(take, package.getEffectiveLevel() if outermost else logging.CRITICAL + 1)
    package.addHandler(handler)
    if outermost:
        package.setLevel(min(package.getEffectiveLevel(), logging.INFO))
        package.propagate = False  # the handler passes records on
    try:
        yield
    finally:
        package.removeHandler(handler)
        if outermost:
            package.setLevel(level)
            package.propagate = True


def to_json(row: dict[str, Any]) -> bytes:
    """One line of JSON, newline included. Tensors and arrays become lists; NaN and infinities null; what JSON lacks, such as
    bytes in a message, becomes text. All line separators of Python's `splitlines` are escaped, so that any reader finds the
    same lines.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(finite(row), ensure_ascii=False, allow_nan=False, default=str)
    # json.dumps escapes control characters. A lone surrogate is not valid UTF-8; its backslash form is its JSON escape.
    return text.translate(SEPARATORS).encode("utf-8", "backslashreplace") + b"\n"


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def finite(value: Any) -> Any:
    """`value` with None for each NaN and infinity in numbers, dicts, lists, tuples and arrays (which become lists)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return finite(value.tolist()) if hasattr(value, "tolist") else value


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a metric has a finite value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
