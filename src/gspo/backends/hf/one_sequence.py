"""Disables transformers' detection of packed sequences, since our rows hold one sequence each. The detection reads tensor
values in every pass, which forces a GPU synchronisation and is impossible for tensors without data.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import masking_utils

NAME = "find_packed_sequence_indices"
_lock = threading.Lock()
_inside = 0  # number of threads inside: the patched function is shared by the process
_before: Any = None


@contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """Context in which transformers does not look for packed sequences."""
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
