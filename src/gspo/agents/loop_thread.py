"""An event loop in its own thread: episodes run in it while the trainer does something else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

END = 5.0  # seconds to wait on shutdown
FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""What code of a user may raise in an episode's task. See `raise_own`."""


class LoopThread:
    """Runs coroutines until it is closed. A SystemExit ends only the task that raised it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._over = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts a coroutine. Cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(self._kept(work), self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result. If the wait is interrupted, the coroutine is cancelled."""
        future = self.begin(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def give_up(self) -> None:
        """Cancels the running coroutines. Waits at most END seconds, so that a blocked loop does not block shutdown."""
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(cancelled(self._tasks), self._loop).result(END)

    def close(self) -> None:
        """Cancels the running coroutines and stops the thread."""
        self.give_up()
        self._over = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END)

    def _run(self) -> None:
        while not self._over:
            # A task's SystemExit also leaves the loop here, besides reaching the awaiter. Keep the loop running.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        self._loop.run_until_complete(cancelled(asyncio.all_tasks(self._loop)))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _kept(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)


def raise_own(error: BaseException) -> None:
    """Raises the error that cancels the running task. Any other CancelledError is a failure: of a task that it awaited."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits until they have ended."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
