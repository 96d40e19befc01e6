"""Subprocesses for code that may hang, crash or print, each with a socket for requests. Imports no torch."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gspo.workers.messages import Frames
from gspo.workers.supervisor import LONGEST, keep

GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # the other side has ended
PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|TEMP|TMP|VIRTUAL_ENV|CONDA_PREFIX|PYTHON\w+"
    r"|(?:DY)?LD_LIBRARY_PATH|(?:OMP|MKL|OPENBLAS|NUMEXPR)_\w+|CUDA_\w+|XDG_\w+|(?:SSL_CERT|REQUESTS_CA|CURL_CA)_\w+"
    r"|HF_HOME|HF_(?:HUB|DATASETS|XET)_CACHE|HF_(?:HUB|DATASETS)_OFFLINE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
)
"""Environment variables passed on: those that programs need to run, and none that may hold a key or a password."""


def spawn(module: str, request: Any, variables: Iterable[str] = ()) -> tuple[subprocess.Popen[bytes], Frames]:
    """Starts `python -m MODULE FD`, sends it a request, and returns at once. The process must call `opened` with its FD.
    Does not use multiprocessing, which would run the user's script again in the new process.

    Args:
        module: The module to run.
        request: The first message, pickled.
        variables: Names of environment variables to pass on in addition to PASSED.
    """
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # stderr: graders' prints must not mix with our output
        env=environment(variables),
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # so that Ctrl-C does not reach it
    )
    theirs.close()
    connection = Frames(ours)
    with contextlib.suppress(OSError):  # already dead: `receive` will raise
        connection.send(pickle.dumps(request))
    return process, connection


def environment(variables: Iterable[str] = ()) -> dict[str, str]:
    """The environment of a process: PASSED, `variables`, and a PYTHONPATH for Python's modules and ours."""
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name) or name in set(variables)}
    return {"OMP_NUM_THREADS": "1"} | passed | {"PYTHONPATH": os.pathsep.join(module_path()), "PYTHONHASHSEED": "0"}


def module_path() -> list[str]:
    """This process's module path for another one: the standard library first, without the current folder. A file next to the
    data must not be imported as a module; `config/import_function.py` finds those that a setting names.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    entries = [os.path.abspath(entry) for entry in sys.path if os.path.abspath(entry) != os.getcwd()]
    ours = str(Path(__file__).parents[2])  # even if gspo itself lies in the current folder
    return list(dict.fromkeys([*sorted(entries, key=lambda entry: entry not in standard), ours]))


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and all its descendants.

    Its connection is left to the garbage collector: another thread may be about to read from it. If the descriptor were
    closed here, its number could be reused for the next worker's connection, and that thread would steal its first message.
    """
    if process.returncode is not None:  # reaped: its pid may be in use again
        return
    process.terminate()  # the keeper ends its descendants first
    try:
        process.wait(2 * LONGEST)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def opened(fd: str) -> Frames:
    """In the process: the connection to its parent. The first message is the request.

    Returns in a child process, which a keeper kills with all its descendants.
    """
    os.set_inheritable(int(fd), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    keep(int(fd))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory: the kernel kills this process rather than the training
    return Frames(socket.socket(fileno=int(fd)))
