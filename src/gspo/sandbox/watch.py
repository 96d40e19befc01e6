"""How long a test may take: by the CPU time that it used and by doing nothing, and not by the clock on the wall."""

from __future__ import annotations

import os
import select
import signal
import time

TICK = 0.1
"""Seconds between two looks at a test that takes long."""
PATIENCE = 2.0
"""Seconds that any test may do nothing."""
BACKSTOP = 10.0
"""Wall time, in multiples of its CPU time, at which a test is ended in any case."""
FILES = 10_000
"""Files that there may be in the folder of the tests."""


class Suppressed:
    """contextlib.suppress, without the modules that it brings: a sandbox starts anew for each reply."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


def watched(pid: int, seconds: float, folder: str = "") -> tuple[int, float, bytes]:
    """Waits for a process: its exit status (negative: a signal), its CPU seconds, and why it was ended: timeout, output.

    A process that waits for a processor is waited for; one that does nothing is not. One that makes more than FILES files
    in the file system of `folder` is ended too: an empty file takes no byte of it, but memory of the kernel.
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
        elif folder and made(folder) > FILES:
            why = b"output"
        if why:
            with Suppressed(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break
    _, status, usage = os.wait4(pid, 0)
    os.close(ending)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, why


def made(folder: str) -> int:
    """Files in the file system of a folder."""
    system = os.statvfs(folder)
    return system.f_files - system.f_ffree


class TaskTimes:
    """What a process and its children have had of the processors. Threads and children that have ended count too: what they
    ran and waited was no idleness.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen: dict[str, tuple[int, int]] = {}  # of each task, when it was looked at last

    def now(self) -> tuple[float, float]:
        """Seconds that they ran, and that they waited for a processor (-1: not known)."""
        try:
            self._look(self.pid)
        except (OSError, ValueError, IndexError):
            return 0.0, -1.0
        return sum(ran for ran, _ in self.seen.values()) * 1e-9, sum(waited for _, waited in self.seen.values()) * 1e-9

    def _look(self, pid: int) -> None:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as file:
                numbers = file.read().split()
            self.seen[task] = int(numbers[0]), int(numbers[1])
            with open(f"/proc/{pid}/task/{task}/children") as file:  # of a compiler; a test has none
                children = file.read().split()
            for child in children:
                with Suppressed(OSError):  # it has ended
                    self._look(int(child))
