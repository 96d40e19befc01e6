"""Calls at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Future[Result]]:
    """Each call in a thread of its own. Unlike those of a pool, they keep no program from ending."""

    def run(call: Callable[[], Result], future: Future[Result]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # whoever waits gets it
            future.set_exception(error)

    futures: list[Future[Result]] = [Future() for _ in calls]
    for each in zip(calls, futures):
        threading.Thread(target=run, args=each, daemon=True).start()
    return futures
