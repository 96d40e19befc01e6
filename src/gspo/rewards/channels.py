"""Where reward functions run, so that a call can be abandoned: subprocesses can be killed, threads can be left behind."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Protocol

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.graders import BATCH, SINGLY, Late, NextResults, Result, RewardFunction, RewardInput, checked
from gspo.rewards.retry_policy import SKIPPED, CallMode
from gspo.workers.json_codec import Junk, unpacked
from gspo.workers.processes import kill, spawn

START = 300.0
"""Seconds for a worker to import what it needs."""
GRACE = 0.5
"""Seconds beyond a call's timeout, for messages and for async calls to be cancelled from within."""
MAX_LOST = 8
"""Calls of one function that may hang or crash per scoring; completions after that are not scored."""
LONGEST, PER_ROW = 1 << 16, 1 << 13
"""Maximum bytes of a worker's message: LONGEST, plus PER_ROW for each row of the request."""
MODULE = "gspo.rewards.worker"


class Lost(Exception):
    """A call whose process died or sent an invalid message."""


class Channel(Protocol):
    """A subprocess or thread that runs reward functions."""

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """Requests the scores of `rows`."""
        ...

    def receive(self, timeout: float) -> NextResults:
        """Returns the next results, within `timeout` seconds. Raises Late or Lost."""
        ...

    def restart(self) -> None:
        """Abandons the call in progress."""
        ...


def score_rows(
    channel: Channel, name: str, rows: list[RewardInput], timeout: float, way: CallMode, note_results: Callable[[int], None]
) -> list[Result]:
    """Results of the function `name`, one per row; only a row whose own call fails, hangs or crashes gets an error.

    Args:
        timeout: Seconds per call.
        way: How the function is called; updated after timeouts.
        note_results: Called with the number of additional rows that have a result.
    """
    results: list[Result] = []
    level, late, lost = way.level, False, 0

    def failed(why: str, by_time: bool) -> None:
        nonlocal late
        if len(rows) > 1:  # a failed single call says nothing about batched calls
            late |= by_time
            way.failed(len(rows), why, by_time)

    while len(results) < len(rows):
        try:
            channel.send(name, rows[len(results) :], level)
            while len(results) < len(rows):
                message = channel.receive(timeout + GRACE)
                level = message.level
                way.grouped |= message.grouped
                if message.failed:
                    failed(message.failed, message.late)
                if late:
                    way.level = max(way.level, level)
                results += message.results
                note_results(len(message.results))
            return results
        except (Late, Lost) as error:
            channel.restart()
            if level < SINGLY:
                level += 1
                failed(str(error), isinstance(error, Late))
                continue
            lost += 1
            why = str(error)
            blamed = _group(rows[len(results) :]) if way.grouped else 1
            blamed_results: list[Result] = [(None, why)] * blamed
            if lost == MAX_LOST:
                skipped = None, f"{SKIPPED}{lost} calls before it hung or crashed: {why}"
                blamed_results += [skipped] * (len(rows) - len(results) - blamed)
        results += blamed_results
        note_results(len(blamed_results))
    return results


def _group(rows: list[RewardInput]) -> int:
    """Number of leading rows that are completions of the same prompt."""
    return next((i for i, row in enumerate(rows) if row.group != rows[0].group), len(rows))


class Worker:
    """A subprocess for the named rewards. It starts at once; the first call waits for it.

    Its messages are validated, since a grader can write into its process's socket. An invalid one costs the process, never
    the run.
    """

    def __init__(self, names: list[str], reward: RewardConfig, task: TaskConfig, code: CodeConfig) -> None:
        self.request, self.variables, self.notice = (names, reward, task, code), reward.env, ""
        self.mark = ""  # checksum of the source files of its rewards
        self.asked: dict[str, list[str]] = {}  # required columns of each reward
        self.changed = False  # whether the checksum changed since the start or the last check
        self._spawn()
        self.ready = self.begun = self.closed = False
        self.lock = threading.Lock()
        self.limit = reward.timeout
        self.call = self.open = 0  # number of the last call, and count of its rows without a result yet
        self.silent = 0  # messages without results since the last one with some

    def _spawn(self) -> None:
        self.process, self.connection = spawn(MODULE, self.request, self.variables)

    def wait(self) -> None:
        """Waits until the imports are done. Raises ValueError if they fail and RuntimeError if the process does not start;
        in a restarted worker, Late or Lost instead.
        """
        if self.ready:
            return
        try:
            problem = self._started()
        except (Late, Lost) as error:
            if self.begun:
                raise
            raise RuntimeError(f"a reward worker did not start: {error}") from None
        if problem and self.begun:
            raise Lost(f"it could not start again: {problem}")
        if problem:
            raise ValueError(problem)

    def _started(self) -> str:
        """Returns why it cannot work, or "". Raises as `_read` does."""
        match self._read(START, START):
            case ["ready", "", str(notice), str(mark), dict(asked)] if all(map(_is_asked, asked.items())):
                self.changed |= self.begun and mark != self.mark
                self.ready = self.begun = True
                self.notice, self.mark, self.asked = notice[:300], mark, asked
                return ""
            case ["ready", str(problem), str(), str(), dict()] if problem:
                return problem
            case message:
                raise Lost(_junk(message))

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """Requests the scores of `rows`. Raises Lost, or ValueError for a column that cannot be sent to another process."""
        self.wait()
        self.call, self.open, self.silent = self.call + 1, len(rows), 0
        try:
            data = pickle.dumps((self.call, pickle.dumps((name, rows, level))))
        except Exception as error:
            raise ValueError(f"the rows cannot be sent to the reward workers ({error}): use plain values") from error
        try:
            self.connection.send(data)
        except TimeoutError:
            raise Lost("its process does not read what it is sent") from None
        except OSError:  # dead: `receive` reports it
            pass

    def receive(self, timeout: float) -> NextResults:
        """Returns the next results. Raises Late or Lost, or ValueError for rows with values the worker cannot import."""
        match self._read(timeout, self.limit):
            case ["unreadable", self.call, str(why)]:
                raise ValueError(f"the reward workers cannot read the rows ({why:.300}): use plain values")
            case ["results", self.call, int(level), [*results], str(failed), bool(late), bool(grouped)] if (
                BATCH <= level <= SINGLY and len(results) <= self.open and all(map(_is_result, results))
            ):
                pass
            case message:
                raise Lost(_junk(message))
        self.open -= len(results)
        self.silent = 0 if results else self.silent + 1
        if self.silent > 1:  # a single one announces the next level
            raise Lost("its process sends messages without results")
        read: list[Result] = [(None, error[:300]) if error is not None else checked(value) for value, error in results]
        return NextResults(level, read, failed[:300], late, grouped)

    def _read(self, timeout: float, limit: float) -> Any:
        try:
            return unpacked(self.connection.receive(timeout, LONGEST + PER_ROW * self.open))
        except TimeoutError:
            raise Late(limit) from None
        except Junk as error:
            raise Lost(f"its process sent {error}") from None
        except (EOFError, OSError):
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(1)
            status = "exit status {code}" if code is None or code >= 0 else signal.Signals(-code).name
            raise Lost(f"its process died ({status.format(code=code)})") from None

    def restart(self) -> None:
        """Kills the process and starts another. Raises RuntimeError if closed."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the reward worker is closed")
            kill(self.process)
            self._spawn()
            self.ready = False

    def close(self) -> None:
        """Kills the process for good."""
        with self.lock:
            self.closed = True
            kill(self.process)


def _is_asked(entry: Any) -> bool:
    match entry:
        case [str(), [*names]]:
            return all(isinstance(name, str) for name in names)
    return False


def _is_result(result: Any) -> bool:
    match result:
        case [None | int() | float(), None] | [None, str()]:
            return True
    return False


def _junk(message: Any) -> str:
    return f"its process sent no answer to what it was asked: {message!r:.80}"


class Thread:
    """A daemon thread for a Python callable. A hanging one is left behind, since Python cannot kill it."""

    def __init__(self, function: RewardFunction, timeout: float) -> None:
        self.function, self.timeout = function, timeout
        self.closed = False
        self._start()

    def _start(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[list[RewardInput], int] | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[NextResults] = queue.SimpleQueue()
        self.abandoned = threading.Event()
        arguments = (self.function, self.timeout, self.inbox, self.outbox, self.abandoned)
        threading.Thread(target=_serve, args=arguments, daemon=True).start()

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """Requests the scores of `rows`."""
        self.inbox.put((rows, level))

    def receive(self, timeout: float) -> NextResults:
        """Returns the next results. Raises Late."""
        try:
            return self.outbox.get(timeout=timeout)
        except queue.Empty:
            raise Late(self.timeout) from None

    def restart(self) -> None:
        """Leaves the thread behind and starts another. Raises RuntimeError if closed."""
        if self.closed:
            raise RuntimeError("the reward thread is closed")
        self._leave()
        self._start()

    def close(self) -> None:
        """Lets the thread end for good."""
        self.closed = True
        self._leave()

    def _leave(self) -> None:
        self.abandoned.set()
        self.inbox.put(None)


def _serve(function: RewardFunction, timeout: float, inbox: Any, outbox: Any, abandoned: threading.Event) -> None:
    with asyncio.Runner() as runner:
        while (request := inbox.get()) is not None:
            rows, level = request
            for message in function.stream(rows, level, runner, timeout):
                if abandoned.is_set():
                    return
                outbox.put(message)
