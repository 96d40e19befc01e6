"""Heartbeat of the leader: it increments a counter in the rendezvous store, and the followers watch it.

Followers wait as long as it takes for the next command, and a leader that is stopped, or whose machine is gone, neither
sends one nor closes its connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from gspo.distributed.environment import LOST

logger = logging.getLogger(__name__)

KEY = "heartbeat"
OFTEN = 5.0  # maximum seconds between two beats
BEATS = 10  # minimum beats within the timeout


@contextmanager
def heartbeat(store: dist.Store, number: int, timeout: float, apart: bool = True) -> Iterator[None]:
    """The leader beats; a follower exits after `timeout` seconds without a beat. apart: the store is not the leader's."""
    pause, pulse, over = min(OFTEN, timeout / BEATS), Pulse(store), threading.Event()
    threads = [threading.Thread(target=listen if number else beat, args=(pulse, pause, over), daemon=True)]
    if number:
        watching = number, pulse, timeout, pause, over, apart
        threads.append(threading.Thread(target=watch, args=watching, daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:  # a thread inside a torch call may abort Python's exit (SIGABRT)
            thread.join(pause)


class Pulse:
    """The beat counter in the store, over its own connection: one serves one call at a time, and some calls take long."""

    def __init__(self, store: Any) -> None:
        # Whether the counter has risen, and the store has answered, since `watch` last looked.
        self.beaten, self.answered = threading.Event(), threading.Event()
        self._store = store
        self._own: Any = None

    def add(self, amount: int) -> int | None:
        """Adds `amount` and returns the count; None if the store is unreachable. The next call reconnects."""
        try:
            if self._own is None:
                self._own = self._store.clone()
            return int(self._own.add(KEY, amount))
        except RuntimeError:
            self._own = None
            return None


def beat(pulse: Pulse, pause: float, over: threading.Event) -> None:
    """Increments the counter every `pause` seconds until `over` is set."""
    while not over.wait(pause):
        pulse.add(1)


def listen(pulse: Pulse, pause: float, over: threading.Event) -> None:
    """Polls the counter every `pause` seconds and records answers and new beats."""
    last: int | None = None
    while not over.wait(pause):
        now = pulse.add(0)
        if now is not None:
            pulse.answered.set()
            if now != last:
                pulse.beaten.set()
            last = now


def watch(number: int, pulse: Pulse, timeout: float, pause: float, over: threading.Event, apart: bool) -> None:
    """Exits this process after `timeout` seconds without a beat.

    Counts pauses instead of seconds, so that no time passes while this process is stopped too (Ctrl-Z). A silent store
    outside the leader's process does not count either: then the launcher is stopped or gone.
    """
    missed = 0
    while not over.wait(pause):
        missed = 0 if pulse.beaten.is_set() else missed + (pulse.answered.is_set() or not apart)
        pulse.beaten.clear()
        pulse.answered.clear()
        if missed * pause > timeout:
            logger.error(f"rank {number}: the leader has not been heard for {timeout:g} seconds")
            os._exit(LOST)
