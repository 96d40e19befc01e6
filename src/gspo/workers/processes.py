"""Processes for what may hang, crash or print, and the socket that each is asked over. Imports no torch."""

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
"""Variables that a process gets: what programs need to run, and nothing that may hold a key or a password."""


def spawn(module: str, request: Any, variables: Iterable[str] = ()) -> tuple[subprocess.Popen[bytes], Frames]:
    """Starts `python -m MODULE FD` with a request, and returns at once. The process calls `opened` with its FD.

    variables: names of environment variables that it gets beside PASSED. Never through multiprocessing: that runs the
    user's script again in the new process.
    """
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what graders print must not mix with our output
        env=environment(variables),
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # out of reach of Ctrl-C
    )
    theirs.close()
    connection = Frames(ours)
    with contextlib.suppress(OSError):  # dead already: whoever receives hears of it
        connection.send(pickle.dumps(request))
    return process, connection


def environment(variables: Iterable[str] = ()) -> dict[str, str]:
    """The environment of a process: PASSED and `variables`, and where it finds Python's modules and ours."""
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name) or name in set(variables)}
    return {"OMP_NUM_THREADS": "1"} | passed | {"PYTHONPATH": os.pathsep.join(module_path()), "PYTHONHASHSEED": "0"}


def module_path() -> list[str]:
    """This process's path of modules for another: the standard library first, and the current folder not at all. A file
    beside the data must not be taken for a module of its name; `config/import_function.py` finds those that a setting names.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    entries = [os.path.abspath(entry) for entry in sys.path if os.path.abspath(entry) != os.getcwd()]
    ours = str(Path(__file__).parents[2])  # also where gspo itself lies in the current folder
    return list(dict.fromkeys([*sorted(entries, key=lambda entry: entry not in standard), ours]))


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and what it started.

    Its connection is left to be collected: another thread may be about to read from it, and a number closed here would
    be given to the next worker's connection, whose first message that thread would take.
    """
    if process.returncode is not None:  # reaped: the number may be another's by now
        return
    process.terminate()  # its keeper ends the others first
    try:
        process.wait(2 * LONGEST)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def opened(fd: str) -> Frames:
    """In the process: the connection to whoever started it. The request is the first thing that it receives.

    It returns in a process of its own, which a keeper ends with all that it started.
    """
    os.set_inheritable(int(fd), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    keep(int(fd))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory: the kernel takes this process, not the training
    return Frames(socket.socket(fileno=int(fd)))
