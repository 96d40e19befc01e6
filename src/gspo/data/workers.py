"""Calls that can be given up: in a process that can be killed, or in a thread that can be left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from gspo.config import RewardConfig, TaskConfig
from gspo.data.scorers import BATCH, SINGLY, Function, Message, Result, Row

START = 300.0
"""Seconds that a worker may take to import what it needs."""
GRACE = 0.5
"""Seconds on top of a call's limit, for messages, and for async calls to be cancelled from within."""
MAX_LOST = 8
"""Calls of one function that may hang or crash in one scoring; the replies after that are not scored."""


class Lost(Exception):
    """A call that hung, or whose process died."""


class Channel(Protocol):
    """Where reward functions run."""

    def send(self, name: str, rows: list[Row], level: int) -> None:
        """Ask for the scores of `rows`."""
        ...

    def receive(self, timeout: float) -> Message:
        """The next results, within `timeout` seconds. Raises Lost."""
        ...

    def restart(self) -> None:
        """Give up the call at work."""
        ...


def score_rows(channel: Channel, name: str, rows: list[Row], timeout: float, done: Callable[[int], None]) -> list[Result]:
    """Each row's result by the function `name`; only a row whose own call fails, hangs or crashes has an
    error.

    timeout: seconds that one call may take. done: told how many more rows have a result.
    """
    results: list[Result] = []
    level, lost = BATCH, 0
    while len(results) < len(rows):
        more: list[Result] = []
        try:
            channel.send(name, rows[len(results) :], level)
            while len(results) < len(rows):
                level, more = channel.receive(timeout + GRACE)
                results += more
                done(len(more))
            return results
        except Lost as error:
            channel.restart()
            if level < SINGLY:
                level += 1
                continue
            lost += 1
            more = [(None, str(error))]
            if lost == MAX_LOST:
                skipped = None, f"not scored: {lost} calls before it hung or crashed"
                more += [skipped] * (len(rows) - len(results) - 1)
        results += more
        done(len(more))
    return results


def spawn(request: tuple[Any, ...]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Starts `python -m gspo.data.worker` with a request, and returns at once.

    Never through multiprocessing: that runs the user's script again in the new process.
    """
    ours, theirs = Pipe()
    path = [entry or os.getcwd() for entry in sys.path]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "gspo.data.worker", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        stdout=2,  # what graders print must not mix with our output
        env=environment,
        pass_fds=[theirs.fileno()],
        start_new_session=True,  # out of reach of Ctrl-C, and its children die with it
    )
    theirs.close()
    ours.send(request)
    return process, ours


def kill(process: subprocess.Popen[bytes], connection: Connection) -> None:
    """Ends a worker and what it started."""
    if process.returncode is None:  # not reaped yet, so the number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    connection.close()


class Worker:
    """A process for the named rewards. It starts at once and is waited for at its first call."""

    def __init__(self, names: list[str], reward: RewardConfig, task: TaskConfig) -> None:
        self.request = ("score", names, reward, task)
        self.process, self.connection = spawn(self.request)
        self.ready = self.closed = False
        self.lock = threading.Lock()
        self.limit = reward.timeout

    def wait(self) -> None:
        """Until it has imported what it needs. Raises ValueError when it cannot."""
        if self.ready:
            return
        try:
            problem = self._read(START, START)
        except Lost as error:
            raise RuntimeError(f"a reward worker did not start: {error}") from None
        if problem is not None:
            raise ValueError(problem)
        self.ready = True

    def send(self, name: str, rows: list[Row], level: int) -> None:
        """Ask for scores. Raises ValueError for a column that cannot be sent to another process."""
        self.wait()
        try:
            data = ForkingPickler.dumps((name, rows, level))
        except Exception as error:
            raise ValueError(f"the rows cannot be sent to the reward workers ({error}): use plain values") from error
        with contextlib.suppress(OSError):  # dead: `receive` says so
            self.connection.send_bytes(data)

    def receive(self, timeout: float) -> Message:
        """The next results. Raises Lost, or ValueError when the rows hold what the worker cannot import."""
        level, more = self._read(timeout, self.limit)
        if level == "unreadable":
            raise ValueError(f"the reward workers cannot read the rows ({more}): use plain values")
        return level, more

    def _read(self, timeout: float, limit: float) -> Any:
        try:
            if not self.connection.poll(timeout):
                raise Lost(f"took longer than {limit:g} s")
            return self.connection.recv()
        except (EOFError, OSError):
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(1)
            how = "exit status {code}" if code is None or code >= 0 else signal.Signals(-code).name
            raise Lost(f"its process died ({how.format(code=code)})") from None

    def restart(self) -> None:
        """Kill the process and start another. Raises RuntimeError once closed."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the reward worker is closed")
            kill(self.process, self.connection)
            self.process, self.connection = spawn(self.request)
            self.ready = False

    def close(self) -> None:
        """Kill the process, for good."""
        with self.lock:
            self.closed = True
            kill(self.process, self.connection)


class Thread:
    """A daemon thread for a Python callable. One that hangs is left behind: Python cannot kill it."""

    def __init__(self, function: Function, timeout: float) -> None:
        self.function, self.timeout = function, timeout
        self.closed = False
        self._start()

    def _start(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[list[Row], int] | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.left = threading.Event()
        arguments = (self.function, self.timeout, self.inbox, self.outbox, self.left)
        threading.Thread(target=_serve, args=arguments, daemon=True).start()

    def send(self, name: str, rows: list[Row], level: int) -> None:
        """Ask for scores."""
        self.inbox.put((rows, level))

    def receive(self, timeout: float) -> Message:
        """The next results. Raises Lost."""
        try:
            return self.outbox.get(timeout=timeout)
        except queue.Empty:
            raise Lost(f"took longer than {self.timeout:g} s") from None

    def restart(self) -> None:
        """Leave the thread behind and start another. Raises RuntimeError once closed."""
        if self.closed:
            raise RuntimeError("the reward thread is closed")
        self._leave()
        self._start()

    def close(self) -> None:
        """Let the thread end, for good."""
        self.closed = True
        self._leave()

    def _leave(self) -> None:
        self.left.set()
        self.inbox.put(None)


def _serve(function: Function, timeout: float, inbox: Any, outbox: Any, left: threading.Event) -> None:
    with asyncio.Runner() as runner:
        while (request := inbox.get()) is not None:
            rows, level = request
            for message in function.stream(rows, level, runner, timeout):
                if left.is_set():
                    return
                outbox.put(message)
