"""The replies of an evaluation on the disk: a line each, appended as they come, so that a kill at any moment loses none."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from gspo.runs import disk
from gspo.runs.log import to_json

Key = tuple[str, int]
"""The id of a problem, and the number of a reply to it."""
REFUSED = "refused"
"""`stop` of a reply that an endpoint refused to give, and that counts as wrong because somebody said so."""
REFUSAL = "the endpoint refused it"
"""`error` of its mark."""


@dataclass(frozen=True)
class Reply:
    """What a model said to a problem. tokens: its length. stop: "eos", "stop" or "length", as of a rollout, or REFUSED."""

    problem: str
    sample: int
    text: str
    tokens: int
    stop: str


@dataclass(frozen=True)
class Mark:
    """What a reply was worth. right: whether it is right; one that could not be scored is wrong, and `error` says why. vote:
    its answer, for the majority; None where there is none.
    """

    problem: str
    sample: int
    right: bool
    vote: str | None = None
    error: str | None = None


Line = TypeVar("Line", Reply, Mark)


class Lines(Generic[Line]):
    """A file of replies or of marks, which one process writes. A last line that a kill has cut is cut off, and those that
    come twice count once.
    """

    def __init__(self, path: Path, kind: type[Line]) -> None:
        """Raises ValueError for a line that is none of ours, RuntimeError where another process has the file."""
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RuntimeError(f"{path}: another process is writing to it; wait for it, or give another folder") from None
        except OSError:
            pass  # a file system without locks
        try:
            self.lines: dict[Key, Line] = read(path, kind)
        except BaseException:
            self._file.close()
            raise
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def add(self, item: Line) -> None:
        """Appends a line, and gives it to the system at once. Raises RuntimeError where the disk does not take it."""
        if (item.problem, item.sample) in self.lines:
            return
        data = to_json(asdict(item))
        try:
            while data:  # a disk that is nearly full takes a part
                data = data[self._file.write(data) or 0 :]
        except OSError as error:
            raise disk.SaveError(disk.refused(self.path, error)) from error
        self.lines[item.problem, item.sample] = item

    def close(self) -> None:
        """All of it is on the disk then."""
        with self._file:
            os.fsync(self._file.fileno())

    def __enter__(self) -> Lines[Line]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, kind: type[Line]) -> dict[Key, Line]:
    """The lines of a file that nobody need be writing. Raises ValueError as Lines does, and where there is no such file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    found: dict[Key, Line] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        item = _read(line, kind, f"{path}, line {number}")
        found.setdefault((item.problem, item.sample), item)
    return found


def _read(line: bytes, kind: type[Line], where: str) -> Line:
    try:
        row: Any = json.loads(line)
        values = {field.name: row[field.name] for field in fields(kind)}
        good = isinstance(values["problem"], str) and type(values["sample"]) is int
        if not good or any(type(values[name]) is not kind_ for name, kind_ in _KINDS[kind].items()):
            raise TypeError
        return kind(**values)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f"{where}: is no line of an evaluation: {line[:60]!r}; restore the file, or begin another"
        ) from None


_KINDS: dict[type, dict[str, type]] = {Reply: {"text": str, "tokens": int, "stop": str}, Mark: {"right": bool}}
