"""A keeper process that stays with a worker and kills it with all its descendants. Imports nothing of gspo: as a script it
runs a command in a child process (`step_aside`).

A worker cannot do this itself: a grader may hold the GIL, crash, or start programs that leave its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

DEATH_SIGNAL, SUBREAPER = 1, 36  # prctl options (Linux)
LONGEST = 5.0
"""Seconds to wait for killed processes to end. One may hang in the kernel."""


def keep(fd: int) -> None:
    """Forks. The child returns and does the work. This process waits until the child ends, the other end of socket `fd`
    closes, or SIGTERM arrives; then it kills all remaining descendants of the child, and ends with the child's status, or by
    SIGKILL.
    """
    wake, write = os.pipe()
    for end in (wake, write):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)  # the signal number arrives in `wake`
    _prctl(SUBREAPER, 1)  # orphaned descendants become children of this process
    keeper = os.getpid()
    child = os.fork()
    if not child:
        signal.set_wakeup_fd(before)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.close(wake)
        os.close(write)
        end_with_parent(keeper)
        return
    status = None
    try:
        status = _wait(child, fd, wake)
    finally:  # in any case, this process must never continue with the work
        _end(status)


def step_aside() -> None:
    """Continues in a child process. The parent waits for the child, passes SIGTERM on and ends with its status. An actor's
    command then is not a child of the actor: Ray kills those before the actor ends, and would orphan their descendants.
    """
    child = os.fork()
    if not child:
        return
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    _end_as(os.waitpid(child, 0)[1])


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """From now on this process gets signal `number` as soon as its parent ends, by default SIGKILL."""
    _prctl(DEATH_SIGNAL, number)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _wait(child: int, fd: int, wake: int) -> int | None:
    """The child's status when it ends; None if the keeper must end it."""
    poll = select.poll()
    poll.register(fd, 0)  # no events: reading is up to the child, and poll always reports a hang-up
    poll.register(wake, select.POLLIN)
    while True:
        for number, status in _reaped():
            if number == child:
                return status
        events = dict(poll.poll())
        if fd in events or (wake in events and signal.SIGTERM in os.read(wake, 1 << 10)):
            return None


def _reaped() -> list[tuple[int, int]]:
    """Children that have ended, with their statuses."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(one)
    return ended


def _end(status: int | None) -> None:
    deadline = time.monotonic() + LONGEST
    while (left := _descendants(os.getpid())) and time.monotonic() < deadline:
        for number in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.001)
        _reaped()
    if status is None:
        os.killpg(0, signal.SIGKILL)  # including this process; without /proc, only its process group
    else:
        _end_as(status)


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    else:
        os._exit(os.waitstatus_to_exitcode(status))


def _descendants(ancestor: int) -> list[int]:
    """Running processes that `ancestor` started, directly or indirectly. Empty if there is no /proc."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append(0 if state in "ZX" else int(path.parent.name))
    found = [ancestor]
    for number in found:
        found += children.get(number, ()) if number else ()
    return [number for number in found[1:] if number]


if __name__ == "__main__":
    step_aside()
    os.execvp(sys.argv[1], sys.argv[1:])
