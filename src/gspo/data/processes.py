"""Processes for what may hang, crash or print, and the socket that each is asked over. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # the other side has ended


def spawn(module: str, request: Any) -> tuple[subprocess.Popen[bytes], Connection]:
    """Starts `python -m MODULE FD` with a request, and returns at once. The process calls `opened` with its FD.

    Never through multiprocessing: that runs the user's script again in the new process.
    """
    ours, theirs = Pipe()
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what graders print must not mix with our output
        env=environment,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # out of reach of Ctrl-C, and its children die with it
    )
    theirs.close()
    ours.send(request)
    return process, ours


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and what it started.

    Its connection is left to be collected: another thread may be about to read from it, and a number closed here would
    be given to the next worker's connection, whose first message that thread would take.
    """
    if process.returncode is None:  # not reaped yet, so the number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def opened(fd: str) -> Connection:
    """In the process: the connection to whoever started it. The request is the first thing that it receives."""
    os.set_inheritable(int(fd), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory: the kernel takes this process, not the training
    return Connection(int(fd))
