"""Calls in dedicated threads. Unlike those of a pool, they do not queue, and they do not keep the process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def begin(call: Callable[[], Result]) -> Future[Result]:
    """Runs a call in its own daemon thread, with the current context variables. Cancelling the future does not stop it."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # from here on, `cancel` has no effect
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(call)
        except BaseException as error:  # re-raised by the future
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future
