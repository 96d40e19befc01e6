"""The replies of an evaluation on disk: one line each, appended as they arrive, so that a kill at any time loses none."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, TypeVar

from gspo.runs import disk
from gspo.runs.log import to_json

Key = tuple[str, int]
"""The id of a problem, and the number of a reply to it."""
REFUSED = "refused"
"""`stop` of a reply that an endpoint refused and that counts as wrong at the user's request."""
REFUSAL = "the endpoint refused it"
"""`error` of the mark of such a reply."""


@dataclass(frozen=True)
class Reply:
    """A model's reply to a problem. `tokens`: its length. `stop`: "eos", "stop" or "length", as in a rollout, or REFUSED."""

    problem: str
    sample: int
    text: str
    tokens: int
    stop: str


@dataclass(frozen=True)
class Mark:
    """The mark of a reply."""

    problem: str
    sample: int
    right: bool
    vote: str | None = None  # its answer, for the majority vote
    error: str | None = None  # why it could not be scored; it then counts as wrong


Line = TypeVar("Line", Reply, Mark)


class Lines(Generic[Line]):
    """A file of replies or marks with a single writer. A last line cut off by a kill is removed; duplicates count once."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        """Raises ValueError for a malformed line, RuntimeError if another process is writing to the file."""
        self.path = path
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RuntimeError(f"{path}: another process is writing to it; wait for it, or give another folder") from None
        except OSError:
            pass  # a file system without locks
        self.lines: dict[Key, Line] = read(path, kind)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def add(self, item: Line) -> None:
        """Appends a line, unbuffered, unless the reply has one already. Raises RuntimeError if the disk does not take it."""
        if (item.problem, item.sample) in self.lines:
            return
        data = to_json(asdict(item))
        with disk.writing(self.path):
            while data:  # a nearly full disk may take only a part
                data = data[self._file.write(data) or 0 :]
        self.lines[item.problem, item.sample] = item

    def __enter__(self) -> Lines[Line]:
        return self

    def __exit__(self, *_: object) -> None:
        """Syncs the file to disk and closes it."""
        with self._file:
            os.fsync(self._file.fileno())


def read(path: Path, kind: type[Line]) -> dict[Key, Line]:
    """Reads the lines of a file without locking it. Raises ValueError for a malformed line and for a missing file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    found: dict[Key, Line] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n")[:-1], 1):
        try:
            item = kind(**json.loads(line))
        except (ValueError, TypeError):
            where = f"{path}, line {number}: is no line of an evaluation: {line[:60]!r}"
            raise ValueError(f"{where}; restore the file, or begin another") from None
        found.setdefault((item.problem, item.sample), item)
    return found
