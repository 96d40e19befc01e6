"""Heartbeat of the leader: it increments a counter in the rendezvous store, and the followers watch it.

Followers wait as long as it takes for the next command, and a leader that is stopped, or whose machine is gone, neither
sends one nor closes its connection.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from gspo.distributed.environment import LOST

KEY = "heartbeat"
OFTEN = 5.0  # maximum seconds between two beats
BEATS = 10  # minimum beats within the timeout


@contextmanager
def heartbeat(store: dist.Store, number: int, timeout: float, apart: bool = True) -> Iterator[None]:
    """Runs the heartbeat during the context: the leader beats, a follower exits if it sees no beat for `timeout` seconds.

    Args:
        number: This rank.
        timeout: In seconds.
        apart: Whether the store runs outside the leader's process, so that a silent store says nothing about the leader.
    """
    pause, pulse = min(OFTEN, timeout / BEATS), Pulse(store)
    over = threading.Event()
    work: list[Callable[[], None]]
    if number == 0:
        work = [lambda: beat(pulse, pause, over)]
    else:
        ear = Ear()
        work = [lambda: listen(pulse, pause, over, ear), lambda: watch(number, timeout, pause, over, ear, apart)]
    threads = [threading.Thread(target=each, daemon=True) for each in work]
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


class Ear:
    """What arrived since `watch` last looked: a `beat` of the leader, an `answer` of the store."""

    def __init__(self) -> None:
        self.beat, self.answer = threading.Event(), threading.Event()


def beat(pulse: Pulse, pause: float, over: threading.Event) -> None:
    """Increments the counter every `pause` seconds until `over` is set."""
    while not over.wait(pause):
        pulse.add(1)


def listen(pulse: Pulse, pause: float, over: threading.Event, ear: Ear) -> None:
    """Polls the counter every `pause` seconds and records answers and new beats in `ear`."""
    last: int | None = None
    while not over.wait(pause):
        now = pulse.add(0)
        if now is not None:
            ear.answer.set()
            if now != last:
                ear.beat.set()
            last = now


def watch(number: int, timeout: float, pause: float, over: threading.Event, ear: Ear, apart: bool) -> None:
    """Exits this process after `timeout` seconds without a beat.

    Counts pauses instead of seconds, so that no time passes while this process is stopped too (Ctrl-Z). A silent store
    outside the leader's process does not count either: then the launcher is stopped or gone.
    """
    missed = 0
    while not over.wait(pause):
        missed = 0 if ear.beat.is_set() else missed + (ear.answer.is_set() or not apart)
        ear.beat.clear()
        ear.answer.clear()
        if missed * pause > timeout:
            print(f"gspo: rank {number}: the leader has not been heard for {timeout:g} seconds", file=sys.stderr, flush=True)
            os._exit(LOST)
