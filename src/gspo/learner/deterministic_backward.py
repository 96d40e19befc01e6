"""CPU backward passes with a fixed summation order: a seeded run is reproducible bit for bit, whatever else the machine
does.

Without it, threads accumulate gradients of indexed states in arbitrary order, also inside model code.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_inside = 0  # number of threads inside: torch's mode is process-wide
_before: tuple[int, bool] = (0, True)  # the caller's settings


@contextmanager
def in_one_order(device: torch.device) -> Iterator[None]:
    """Context for backward passes on this device. Has no effect on a GPU."""
    if device.type != "cpu":
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """Counts a thread in or out. The first one in sets torch's mode, the last one out restores the caller's."""
    global _inside, _before
    memory: Any = torch.utils.deterministic
    with _lock:
        if not _inside:
            _before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
            memory.fill_uninitialized_memory = False  # all memory is overwritten anyway
            torch.set_deterministic_debug_mode("warn")
        _inside += change
        if not _inside:
            mode, memory.fill_uninitialized_memory = _before
            torch.set_deterministic_debug_mode(mode)
