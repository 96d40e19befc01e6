"""Where reward functions run, so that a call can be given up: processes that can be killed, threads that can be left."""

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
"""Seconds that a worker may take to import what it needs."""
GRACE = 0.5
"""Seconds on top of a call's limit, for messages, and for async calls to be cancelled from within."""
MAX_LOST = 8
"""Calls of one function that may hang or crash in one scoring; the completions after that are not scored."""
LONGEST, PER_ROW = 1 << 16, 1 << 13
"""Bytes that a message of a worker may have, and as many more for each row that it is asked about."""
MODULE = "gspo.rewards.worker"


class Lost(Exception):
    """A call whose process died, or sent what it should not."""


class Channel(Protocol):
    """Where reward functions run."""

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """Ask for the scores of `rows`."""
        ...

    def receive(self, timeout: float) -> NextResults:
        """The next results, within `timeout` seconds. Raises Late or Lost."""
        ...

    def restart(self) -> None:
        """Give up the call at work."""
        ...


def score_rows(
    channel: Channel, name: str, rows: list[RewardInput], timeout: float, way: CallMode, note_results: Callable[[int], None]
) -> list[Result]:
    """Each row's result by the function `name`; only a row whose own call fails, hangs or crashes has an
    error.

    timeout: seconds that one call may take. way: how the function is called; time-outs change it. note_results: told how
    many more rows have a result.
    """
    results: list[Result] = []
    level, late, lost = way.level, False, 0

    def failed(why: str, by_time: bool) -> None:
        nonlocal late
        if len(rows) > 1:  # one alone says nothing about many
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
    """How many of the rows, from the first on, are completions to the same prompt."""
    return next((i for i, row in enumerate(rows) if row.group != rows[0].group), len(rows))


class Worker:
    """A process for the named rewards. It starts at once and is waited for at its first call.

    What it sends is checked: a grader can write into its process's socket. Junk costs the process, never the run.
    """

    def __init__(self, names: list[str], reward: RewardConfig, task: TaskConfig, code: CodeConfig) -> None:
        self.request, self.variables, self.notice = (names, reward, task, code), reward.env, ""
        self.mark = ""  # checksum of the files of its rewards
        self.asked: dict[str, list[str]] = {}  # by each reward, the columns without which it cannot be called
        self.changed = False  # whether they changed, since it began or since this was last asked
        self._spawn()
        self.ready = self.begun = self.closed = False
        self.lock = threading.Lock()
        self.limit = reward.timeout
        self.call = self.open = 0  # the number of the last call, and how many of its rows have no result yet
        self.silent = 0  # messages without a result since the last one with some

    def _spawn(self) -> None:
        self.process, self.connection = spawn(MODULE, self.request, self.variables)

    def wait(self) -> None:
        """Until it has imported what it needs. Raises ValueError where it cannot; Lost, where it could before."""
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
        """Why it cannot work, "" where it can. Raises as `_read` does."""
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
        """Ask for scores. Raises Lost, or ValueError for a column that cannot be sent to another process."""
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
        except OSError:  # dead: `receive` says so
            pass

    def receive(self, timeout: float) -> NextResults:
        """The next results. Raises Late or Lost, and ValueError for rows with what the worker cannot import."""
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
        if self.silent > 1:  # one announces the next level
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
        """Kill the process and start another. Raises RuntimeError once closed."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the reward worker is closed")
            kill(self.process)
            self._spawn()
            self.ready = False

    def close(self) -> None:
        """Kill the process, for good."""
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
    """A daemon thread for a Python callable. One that hangs is left behind: Python cannot kill it."""

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
        """Ask for scores."""
        self.inbox.put((rows, level))

    def receive(self, timeout: float) -> NextResults:
        """The next results. Raises Late."""
        try:
            return self.outbox.get(timeout=timeout)
        except queue.Empty:
            raise Late(self.timeout) from None

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
