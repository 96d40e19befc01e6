"""Where a reward worker runs: on this machine, or where a cluster lets it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

from gspo.workers.messages import Frames
from gspo.workers.processes import kill, spawn

MODULE = "gspo.rewards.worker"


class MachineLost(Exception):
    """The machine of a worker is gone, or does not answer. Its next process starts elsewhere."""


class WorkerProcess(Protocol):
    """A worker's process."""

    def wait(self, timeout: float) -> int:
        """Its exit status, minus the signal where one ended it. Raises subprocess.TimeoutExpired."""
        ...


class Messages(Protocol):
    """Messages to and from it, as Frames has them. On another machine each may also raise MachineLost."""

    def send(self, data: bytes) -> None:
        """See Frames."""
        ...

    def receive(self, seconds: float, most: int) -> bytes:
        """See Frames."""
        ...


class Place(Protocol):
    """Where a worker's process runs, one at a time."""

    @property
    def name(self) -> str:
        """That machine's address, "" for this one."""
        ...

    def spawn(self, request: Any, variables: Sequence[str]) -> tuple[WorkerProcess, Messages]:
        """Starts one with a request, and returns at once. variables: as `processes.spawn` takes them."""
        ...

    def end(self) -> None:
        """Ends it, with what it started. A process that was ended may still be read from: it has ended."""
        ...

    def leave(self, why: str) -> bool:
        """Whether the next process starts elsewhere, which it does from now on, as none can run here."""
        ...

    def news(self) -> list[str]:
        """Each move to another machine since this was last asked, in words."""
        ...

    def close(self) -> None:
        """Ends it, for good."""
        ...


class Here:
    """This machine."""

    name = ""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, request: Any, variables: Sequence[str]) -> tuple[subprocess.Popen[bytes], Frames]:
        """See Place."""
        self.process, connection = spawn(MODULE, request, variables)
        return self.process, connection

    def end(self) -> None:
        """See Place."""
        if self.process is not None:
            kill(self.process)

    def leave(self, why: str) -> bool:
        """There is no other place."""
        return False

    def news(self) -> list[str]:
        """It never moves."""
        return []

    close = end
