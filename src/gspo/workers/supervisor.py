"""A supervisor process that stays with a worker and kills it with all its descendants. Imports nothing of gspo: as a script
it runs a command in a child process (`step_aside`).

A worker cannot do this itself: a grader may hold the GIL, crash, or start programs that leave its session.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

DEATH_SIGNAL, SUBREAPER = 1, 36  # prctl options (Linux)
LONGEST = 5.0  # seconds to wait for killed processes to end: one may hang in the kernel
folder: str | None = None  # in a worker: made when needed, and removed when the worker has ended, however it ended


def keep(fd: int) -> None:
    """Forks, and returns in the child. This process waits until the child ends, the other end of socket `fd` closes, or
    SIGTERM arrives; then it kills the child's descendants, removes `folder`, and ends as the child did, or by SIGKILL.
    """
    global folder
    folder = os.path.join(tempfile.gettempdir(), f"gspo-scratch-{os.urandom(8).hex()}")
    signals = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _prctl(SUBREAPER, 1)  # orphaned descendants become children of this process
    supervisor = os.getpid()
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        end_with_parent(supervisor)
        return
    threading.Thread(target=_terminate_at_hang_up, args=(fd,), daemon=True).start()
    status = None
    while status is None and signal.sigwait(signals) == signal.SIGCHLD:
        status = _reaped().get(child)
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
    """From now on this process gets signal `number` as soon as its parent ends."""
    _prctl(DEATH_SIGNAL, number)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _terminate_at_hang_up(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)  # no events: reading is up to the child, and poll always reports a hang-up
    poll.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _reaped() -> dict[int, int]:
    """The statuses of children that have ended since the last call, adopted ones too."""
    statuses = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def _end(status: int | None) -> None:
    """Kills children until none is left: those of a killed child are adopted, and their turn comes."""
    deadline = time.monotonic() + LONGEST
    while (children := _children(os.getpid())) and time.monotonic() < deadline:
        for number in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.001)
        _reaped()
    if folder and os.path.isdir(folder):
        subprocess.run(["rm", "-rf", folder], check=False, capture_output=True)
    if status is None:
        os.killpg(0, signal.SIGKILL)  # including this process; without /proc, only its process group
    else:
        _end_as(status)


def _children(parent: int) -> list[int]:
    """The processes whose parent is `parent`. Empty if there is no /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text(errors="replace").rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    else:
        os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    step_aside()
    os.execvp(sys.argv[1], sys.argv[1:])
