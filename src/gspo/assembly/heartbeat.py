"""Whether the leader still runs: it says so in the store through which the ranks have met, and the others listen.

They wait for its next command as long as that takes, and a process that is stopped, or whose machine has gone, neither sends
one nor closes its connection.
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
OFTEN = 5.0  # seconds between two beats, at most
BEATS = 10  # within the time limit, at least


@contextmanager
def heartbeat(store: dist.Store, number: int, timeout: float, apart: bool = True) -> Iterator[None]:
    """Meanwhile the leader beats, and each other rank ends itself where it hears no beat for `timeout` seconds. apart: the
    store is in another process than the leader, so that a store that says nothing tells nothing of the leader.
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
        for thread in threads:  # one that is in a call of torch's when Python ends may end it by SIGABRT
            thread.join(pause)


class Pulse:
    """The count of beats in the store, by a connection of its own: one serves one call at a time, and some take long."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._own: Any = None

    def add(self, amount: int) -> int | None:
        """The number of beats, with so many more; None where the store could not be reached just now. The next call tries
        anew.
        """
        try:
            if self._own is None:
                self._own = self._store.clone()
            return int(self._own.add(KEY, amount))
        except RuntimeError:
            self._own = None
            return None


class Ear:
    """What has been heard since `watch` last looked. beat: of the leader. answer: of the store."""

    def __init__(self) -> None:
        self.beat, self.answer = threading.Event(), threading.Event()


def beat(pulse: Pulse, pause: float, over: threading.Event) -> None:
    """Says every `pause` seconds that this process runs, until it is over."""
    while not over.wait(pause):
        pulse.add(1)


def listen(pulse: Pulse, pause: float, over: threading.Event, ear: Ear) -> None:
    """Hears whether the leader has said so again."""
    last: int | None = None
    while not over.wait(pause):
        now = pulse.add(0)
        if now is not None:
            ear.answer.set()
            if now != last:
                ear.beat.set()
            last = now


def watch(number: int, timeout: float, pause: float, over: threading.Event, ear: Ear, apart: bool) -> None:
    """Ends this process where nothing is heard. Pauses are counted, not seconds: where this process is stopped too, as by
    Ctrl-Z, no time passes. Nor does it where a store apart is silent: who started the ranks is stopped, or gone.
    """
    missed = 0
    while not over.wait(pause):
        missed = 0 if ear.beat.is_set() else missed + (ear.answer.is_set() or not apart)
        ear.beat.clear()
        ear.answer.clear()
        if missed * pause > timeout:
            print(f"gspo: rank {number}: the leader has not been heard for {timeout:g} seconds", file=sys.stderr, flush=True)
            os._exit(LOST)
