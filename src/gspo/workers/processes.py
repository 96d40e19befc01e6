"""Subprocesses for code that may hang, crash or print: they get pickled requests and send plain data. Imports no torch.

Guaranteed: a process can be killed at any time, with everything that it started, and all of it ends when this process ends,
however it ends. What it prints goes to stderr. Its messages are JSON of limited size and are never executed. No call here
waits longer than its time limit. Not guaranteed: anything about code that damages its own connection on purpose.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from gspo.workers.json_codec import unpacked
from gspo.workers.supervisor import LONGEST, keep

GONE = (EOFError, BrokenPipeError, ConnectionResetError)  # the other side has ended
STALLED = 60  # seconds that one read or write may take within a message
LARGEST = 1 << 26  # bytes of a message from a process
PASSED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TERM|TMPDIR|TEMP|TMP|VIRTUAL_ENV|CONDA_PREFIX|PYTHON\w+"
    r"|(?:DY)?LD_LIBRARY_PATH|(?:OMP|MKL|OPENBLAS|NUMEXPR)_\w+|CUDA_\w+|XDG_\w+|(?:SSL_CERT|REQUESTS_CA|CURL_CA)_\w+"
    r"|HF_HOME|HF_(?:HUB|DATASETS|XET)_CACHE|HF_(?:HUB|DATASETS)_OFFLINE|TRANSFORMERS_OFFLINE|TOKENIZERS_PARALLELISM"
)
"""Environment variables passed on: those that programs need to run, and none that may hold a key or a password."""


class Lost(Exception):
    """A process that died, does not read, or sent no valid message. The text continues "the process"."""


class Process:
    """A running `python -m MODULE FD`, which must call `opened` with its FD (multiprocessing would run the user's script
    again). request: The first message. variables: Names of environment variables to pass on in addition to PASSED.
    """

    def __init__(self, module: str, request: Any, variables: Iterable[str] = ()) -> None:
        ours, theirs = socket.socketpair()
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", STALLED, 0))
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=2,  # stderr: graders' prints must not mix with our output
            env=environment(variables),
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.send(pickle.dumps(request))

    def send(self, data: bytes) -> None:
        """Sends a message. Raises Lost if the process does not read it; if it has ended, `receive` will say so."""
        try:
            self.connection.send_bytes(data)
        except BlockingIOError:
            raise Lost("does not read what it is sent") from None
        except OSError:
            pass

    def receive(self, timeout: float) -> Any:
        """The next message. Raises TimeoutError if none arrives within `timeout` seconds, or Lost."""
        if not self.connection.poll(timeout):
            raise TimeoutError
        try:
            return unpacked(self.connection.recv_bytes(LARGEST))
        except ValueError as error:
            raise Lost(f"sent {error}") from None
        except BlockingIOError:
            raise Lost("does not finish its message") from None
        except (EOFError, OSError):
            raise Lost(self._fate()) from None

    def _fate(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(1)
        code = self.popen.returncode
        if code is None:
            return "broke its connection"
        return f"died ({signal.Signals(-code).name if code < 0 else f'exit status {code}'})"

    def kill(self) -> None:
        """Ends the process and all its descendants.

        The connection stays open: another thread may be about to read from it, and must not read, under a number that is
        used again, the first message of the next process.
        """
        self.popen.terminate()  # the supervisor ends its descendants first
        try:
            self.popen.wait(2 * LONGEST)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            self.popen.wait()


def environment(variables: Iterable[str]) -> dict[str, str]:
    """The environment of a process: PASSED, `variables`, and a PYTHONPATH for Python's modules and ours."""
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name) or name in set(variables)}
    return {"OMP_NUM_THREADS": "1"} | passed | {"PYTHONPATH": os.pathsep.join(module_path()), "PYTHONHASHSEED": "0"}


def module_path() -> list[str]:
    """This process's module path, the standard library first, without the current folder: a file beside the data is no
    module, unless a setting names it (`config/import_function.py`).
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    entries = [os.path.abspath(entry) for entry in sys.path if os.path.abspath(entry) != os.getcwd()]
    ours = str(Path(__file__).parents[2])  # even if gspo itself lies in the current folder
    return list(dict.fromkeys([*sorted(entries, key=lambda entry: entry not in standard), ours]))


def opened(fd: str) -> Connection:
    """In the process: the connection to its parent, whose first message is the request. Returns in a child process."""
    os.set_inheritable(int(fd), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    keep(int(fd))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory: the kernel kills this process rather than the training
    return Connection(int(fd))


_files: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def close_in_children(file: IO[Any]) -> None:
    """Has forked children close this file at once, which a child would otherwise keep open after this process was killed."""
    _files.add(file)


def _close_in_child() -> None:
    for file in list(_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
