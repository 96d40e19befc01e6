"""Signals that ask a run or a command to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


class Stop:
    """Whether Ctrl-C, SIGTERM or a closed terminal has asked the run to end after this step."""

    asked = False


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[Stop]:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into `Stop.asked`; a Ctrl-C after it interrupts at once. SIGHUP stays
    ignored if it was (nohup).
    """
    stop = Stop()

    def ask(number: int) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        with suppress(RuntimeError):  # the signal may have interrupted a write to the terminal
            name, again = signal.Signals(number).name, " again" if number == signal.SIGINT else ""
            note(f"{name}: finishing this step, then saving; Ctrl-C{again} stops at once")

    with handled(heard_here(), ask):
        yield stop


def heard_here() -> list[signal.Signals]:
    """The signals that ask a run to end, without SIGHUP if this process ignores it (nohup)."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,))]


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP (unless nohup ignores it) end a command as Ctrl-C does, so that it ends its subprocesses."""
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with handled(numbers, interrupt):
        yield


def interrupt(number: int) -> None:
    """What a signal does that ends a command at once."""
    raise KeyboardInterrupt


@contextmanager
def handled(numbers: Iterable[signal.Signals], handle: Callable[[int], None]) -> Iterator[None]:
    """Meanwhile calls `handle` for these signals. Has no effect outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        if heard and number != signal.SIGINT:  # kernel and shell, or a scheduler and the launcher, may each send one
            return
        heard.append(number)
        handle(number)

    before = {number: signal.signal(number, hear) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
