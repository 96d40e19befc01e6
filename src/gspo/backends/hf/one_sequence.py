"""Disables transformers' detection of packed sequences, since our rows hold one sequence each. The detection reads tensor
values in every pass, which forces a GPU synchronisation and is impossible for tensors without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor
from transformers import masking_utils

_within: ContextVar[bool] = ContextVar("one_sequence_a_row", default=False)
_detect = masking_utils.find_packed_sequence_indices


@contextmanager
def one_sequence_a_row() -> Iterator[None]:
    """Context in which transformers does not look for packed sequences in this thread."""
    token = _within.set(True)
    try:
        yield
    finally:
        _within.reset(token)


def _find(position_ids: Tensor) -> Tensor | None:
    return None if _within.get() else _detect(position_ids)


masking_utils.find_packed_sequence_indices = _find
