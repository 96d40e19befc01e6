"""Where reward functions run, so that a call can be abandoned: subprocesses can be killed, threads can be left behind.

A grader that hangs, crashes, prints, starts programs or takes too much memory costs the completions of its call, never the
run. workers/processes.py says what is guaranteed about a subprocess.
"""

from __future__ import annotations

import asyncio
import pickle
import queue
import threading
from typing import Any

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.graders import CallFailed, Result, RewardFunction, RewardInput, Signature
from gspo.workers.processes import Lost, Process

START = 300.0  # seconds for a worker to import what it needs
GRACE = 0.5  # seconds beyond a call's timeout, for messages and for async calls to be cancelled from within


class Worker:
    """A subprocess for the named rewards. It starts at once, and the first call waits for it. After a request that failed
    (CallFailed) it is ready for another one. Once it has started, it has their signatures and a notice for the run to show.
    """

    def __init__(self, names: list[str], reward: RewardConfig, task: TaskConfig, code: CodeConfig) -> None:
        self.request, self.variables = (names, reward, task, code), reward.env_passthrough
        self.signatures: dict[str, Signature] = {}
        self.notice, self.closed = "", False
        self.lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self.process, self.ready = Process("gspo.rewards.worker", self.request, self.variables), False

    def wait(self) -> None:
        """Waits until the imports are done. Raises ValueError if they fail and RuntimeError if the process does not start;
        in a restarted worker, CallFailed instead.
        """
        if self.ready:
            return
        try:
            problem, self.notice, signatures = self._receive(START)
        except CallFailed as error:
            if self.signatures:
                raise
            raise RuntimeError(f"a reward worker did not start: {error}") from None
        if problem and self.signatures:
            self._restart()
            raise CallFailed(f"it could not start again: {problem}")
        if problem:
            raise ValueError(problem)
        self.signatures = {name: Signature(*fields) for name, fields in signatures.items()}
        self.ready = True

    def signature(self, name: str) -> Signature:
        """How a reward can be called. Waits until it is loaded; raises as `wait` does."""
        if not self.signatures:
            self.wait()
        return self.signatures[name]

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """Requests the scores of `rows`. Raises ValueError for a column that cannot be sent to another process."""
        self.wait()
        try:
            data = pickle.dumps((name, rows, level))
        except Exception as error:
            raise ValueError(f"the rows cannot be sent to the reward workers ({error}): use plain values") from error
        try:
            self.process.send(data)
        except Lost as error:
            self._restart()
            raise CallFailed(f"its process {error}") from None

    def receive(self, timeout: float) -> list[Result]:
        """The next results of a call that may take `timeout` seconds. Raises ValueError for rows that it cannot read."""
        match self._receive(timeout):
            case ["results", results]:
                return results
            case ["failed", why, late]:
                raise CallFailed(why, late)
            case unreadable:
                raise ValueError(f"the reward workers cannot read the rows ({unreadable[1]:.300}): use plain values")

    def _receive(self, timeout: float) -> Any:
        try:
            return self.process.receive(timeout + GRACE)
        except TimeoutError:
            failed = CallFailed.after(timeout)
        except Lost as error:
            failed = CallFailed(f"its process {error}")
        self._restart()
        raise failed

    def _restart(self) -> None:
        """Kills the process and starts another. Raises RuntimeError if closed."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the reward worker is closed")
            self.process.kill()
            self._start()

    def close(self) -> None:
        """Kills the process for good."""
        with self.lock:
            self.closed = True
            self.process.kill()


class Thread:
    """A daemon thread for a Python callable, with the methods of Worker. One that hangs is left behind."""

    def __init__(self, function: RewardFunction, timeout: float) -> None:
        self.function, self.timeout = function, timeout
        self._start()

    def _start(self) -> None:
        self.inbox: queue.SimpleQueue[tuple[list[RewardInput], int] | None] = queue.SimpleQueue()
        self.outbox: queue.SimpleQueue[list[Result] | CallFailed] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(self.inbox, self.outbox), daemon=True).start()

    def _serve(self, inbox: Any, outbox: Any) -> None:
        with asyncio.Runner() as runner:
            while (request := inbox.get()) is not None:
                rows, level = request
                try:
                    for results in self.function.stream(rows, level, runner, self.timeout):
                        if outbox is not self.outbox:  # left behind
                            return
                        outbox.put(results)
                except CallFailed as failed:
                    outbox.put(failed)

    def signature(self, name: str) -> Signature:
        """As in Worker."""
        return self.function.signature

    def send(self, name: str, rows: list[RewardInput], level: int) -> None:
        """As in Worker."""
        self.inbox.put((rows, level))

    def receive(self, timeout: float) -> list[Result]:
        """As in Worker."""
        try:
            message = self.outbox.get(timeout=timeout + GRACE)
        except queue.Empty:
            self.inbox.put(None)
            self._start()
            raise CallFailed.after(timeout) from None
        if isinstance(message, CallFailed):
            raise message
        return message

    def close(self) -> None:
        """Lets the thread end; a call in progress is left behind."""
        self.inbox.put(None)
        self.outbox = queue.SimpleQueue()


Channel = Worker | Thread
