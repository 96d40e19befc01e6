"""Time that is over at once for what waits in an event loop: a limit may be long then for all that must keep it."""

import threading

from tests.patience import PATIENCE


def leap(loop):
    """Whatever waits in this loop for PATIENCE or less has waited long enough. It may be called in any thread."""

    def jump():
        loop.leapt = getattr(loop, "leapt", 0.0) + 2 * PATIENCE
        loop.time = lambda: type(loop).time(loop) + loop.leapt

    if loop._thread_id == threading.get_ident():  # in a call of its own: at once
        jump()
    else:
        loop.call_soon_threadsafe(jump)
