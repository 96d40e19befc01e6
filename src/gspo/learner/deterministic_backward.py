"""Backward passes on a CPU that add up in one order: a seeded run repeats bit for bit, whatever else the machine does.

Gradients of indexed states are else added up by threads as they come, in models' own code too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_inside = 0  # threads: torch's mode is the process's
_before: tuple[int, bool] = (0, True)  # of the caller


@contextmanager
def in_one_order(device: torch.device) -> Iterator[None]:
    """For backward passes on this device. A GPU's are left as they are."""
    if device.type != "cpu":
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _before
    memory: Any = torch.utils.deterministic
    with _lock:
        if not _inside:
            _before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
            memory.fill_uninitialized_memory = False  # all of it is written anyway
            torch.set_deterministic_debug_mode("warn")
        _inside += 1


def _leave() -> None:
    global _inside
    memory: Any = torch.utils.deterministic
    with _lock:
        _inside -= 1
        if not _inside:
            mode, memory.fill_uninitialized_memory = _before
            torch.set_deterministic_debug_mode(mode)
