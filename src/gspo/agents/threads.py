"""Calls in threads of their own. Unlike those of a pool, they wait for no other, and keep no program from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar

Result = TypeVar("Result")


def begin(call: Callable[[], Result]) -> Future[Result]:
    """Begins a call in a thread of its own, with the context variables of now. The future gets what it returns or raises;
    to cancel it stops nothing. Raises RuntimeError where no thread can be started.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()  # who stops waiting does not stop the call
    context = copy_context()

    def run() -> None:
        try:
            result = context.run(call)
        except BaseException as error:  # whoever waits gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:
        running = threading.active_count()
        raise RuntimeError(f"{error} beside {running} that run: raise `ulimit -u`, or end what hangs") from error
    return future
