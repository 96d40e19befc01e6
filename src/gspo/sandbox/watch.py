"""Timeouts of a test: by CPU time and by idle time, not by wall time."""

from __future__ import annotations

import os
import select
import signal
import time

TICK = 0.1
"""Seconds between two polls of a running test."""
PATIENCE = 2.0
"""Seconds that any test may be idle."""
BACKSTOP = 10.0
"""Wall-time limit of a test, as a multiple of its CPU limit."""
FILES = 10_000
"""Maximum number of files in the folder of the tests."""


class Suppressed:
    """contextlib.suppress without its imports, since a sandbox starts anew for each reply."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


def watch(pid: int, seconds: float, folder: str = "") -> tuple[int, float, bytes]:
    """Waits for a process. Returns its exit status (negative: a signal), CPU seconds, and why it was killed ("timeout",
    "output" or "").

    Time spent waiting for a CPU does not count as idle. A process that makes more than FILES files in the file system of
    `folder` is killed too: an empty file takes none of its bytes, but kernel memory.
    """
    begin, why, work = time.monotonic(), b"", TaskTimes(pid)
    ending = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    while not poll.poll(TICK * 1000):
        wall = time.monotonic() - begin
        ran, waited = work.now()
        idle = wall - ran - waited if waited >= 0 else 0.0
        if ran > seconds + TICK or idle > max(PATIENCE, seconds) or wall > BACKSTOP * (seconds + 1):
            why = b"timeout"
        elif folder and files_in(folder) > FILES:
            why = b"output"
        if why:
            with Suppressed(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break
    _, status, usage = os.wait4(pid, 0)
    os.close(ending)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, why


def files_in(folder: str) -> int:
    """Number of files in the file system of a folder."""
    system = os.statvfs(folder)
    return system.f_files - system.f_ffree


class TaskTimes:
    """Time that a process and its children ran and waited for a CPU. Threads and children that have ended count too: their
    time was not idle.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen: dict[str, tuple[int, int]] = {}  # nanoseconds that each task ran and waited, as last read

    def now(self) -> tuple[float, float]:
        """Seconds that they ran, and that they waited for a CPU (-1: unknown)."""
        try:
            self._look(self.pid)
        except (OSError, ValueError, IndexError):
            return 0.0, -1.0
        return sum(ran for ran, _ in self.seen.values()) * 1e-9, sum(waited for _, waited in self.seen.values()) * 1e-9

    def _look(self, pid: int) -> None:
        for task in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{task}"
            try:
                self._read(folder, task)
            except OSError:
                if os.path.exists(folder):  # else it has ended
                    raise

    def _read(self, folder: str, task: str) -> None:
        with open(f"{folder}/schedstat") as file:
            numbers = file.read().split()
        self.seen[task] = int(numbers[0]), int(numbers[1])
        with open(f"{folder}/children") as file:  # only a compiler has children
            children = file.read().split()
        for child in children:
            with Suppressed(OSError):  # it has ended
                self._look(int(child))
