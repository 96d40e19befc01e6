"""Timeouts of a test: by CPU time and by idle time, not by wall time."""

from __future__ import annotations

import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in typing, which is slow to import
    from collections.abc import Callable

TICK = 0.1  # seconds between two polls of a running test
PATIENCE = 2.0  # seconds that any test may be idle
BACKSTOP = 10.0  # wall-time limit of a test, as a multiple of its CPU limit
FILES = 10_000  # of the tests


class Suppressed:
    """contextlib.suppress without its imports, since a sandbox starts anew for each reply."""

    def __init__(self, *errors: type[BaseException]) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        return kind is not None and issubclass(kind, self.errors)


def watch(pid: int, seconds: float, excess: Callable[[], bytes] = bytes) -> tuple[int, float, bytes]:
    """Waits for a process. Returns its exit status (negative: a signal), CPU seconds, and why it was killed: "timeout", what
    `excess` returned, or "". Time spent waiting for a CPU does not count as idle.
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
        else:
            why = excess()
        if why:
            with Suppressed(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break
    _, status, usage = os.wait4(pid, 0)
    os.close(ending)
    return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, why


def overfull(folder: str, most: int, largest: int, pid: int) -> bytes:
    """ "output" if a folder has more than FILES files, "error" if they take more than `most` bytes, else "". Deleted files
    that process `pid` has open or maps count too: a mapped one with `largest` bytes, since a page keeps the whole.
    """
    count, size, folders = 0, 0, [folder]
    try:
        while folders:
            with Suppressed(FileNotFoundError), os.scandir(folders.pop()) as entries:  # it was removed meanwhile
                for entry in entries:
                    count, size = count + 1, size + 512 * entry.stat(follow_symlinks=False).st_blocks
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    if count > FILES:
                        return b"output"
    except OSError:  # too deep for a path
        return b"output"
    with Suppressed(OSError):  # the process has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            file = os.stat(f"/proc/{pid}/fd/{name}")
            if not file.st_nlink and os.readlink(f"/proc/{pid}/fd/{name}").startswith(folder):
                size += 512 * file.st_blocks
        with open(f"/proc/{pid}/maps", "rb") as maps:
            gone = [line.split() for line in maps if line.endswith(b"(deleted)\n") and folder.encode() in line]
        size += largest * len({tuple(words[3:5]) for words in gone})  # device and inode
    return b"error" if size > most else b""


class TaskTimes:
    """Time that a process and its children ran and waited for a CPU, with those that have ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen: dict[str, tuple[int, int]] = {}  # nanoseconds that each task ran and waited, as last read

    def now(self) -> tuple[float, float]:
        """Seconds that they ran, and that they waited for a CPU (-1: unknown)."""
        try:
            self._look(self.pid)
        except OSError:
            return 0.0, -1.0
        return sum(ran for ran, _ in self.seen.values()) * 1e-9, sum(waited for _, waited in self.seen.values()) * 1e-9

    def _look(self, pid: int) -> None:
        for task in os.listdir(f"/proc/{pid}/task"):
            folder = f"/proc/{pid}/task/{task}"
            try:
                with open(f"{folder}/schedstat") as file:
                    ran, waited, _ = map(int, file.read().split())
                with open(f"{folder}/children") as file:  # only a compiler has children
                    children = file.read().split()
            except OSError:
                if os.path.exists(folder):
                    raise
                continue  # it has ended
            self.seen[task] = ran, waited
            for child in children:
                with Suppressed(OSError):  # it has ended
                    self._look(int(child))
