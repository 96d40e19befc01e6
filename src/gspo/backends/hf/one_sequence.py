"""Rows that hold one sequence each, and transformers told so. It would look for more of them in the numbers of every pass:
that waits for a GPU, and without numbers it cannot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import masking_utils

NAME = "find_packed_sequence_indices"
_lock = threading.Lock()
_inside = 0  # threads: transformers' function is the process's
_before: Any = None


@contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """Has transformers look for no further sequences in a row."""
    global _inside, _before
    with _lock:
        if not _inside:
            _before = getattr(masking_utils, NAME, None)
            if _before is not None:
                setattr(masking_utils, NAME, lambda *args, **kwargs: None)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _before is not None:
                setattr(masking_utils, NAME, _before)
