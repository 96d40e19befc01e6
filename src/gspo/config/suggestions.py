"""Suggestions for misspelt words in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str:
    """`, did you mean X?` with the nearest known word; "" if none is near."""
    close = difflib.get_close_matches(word[:100], list(words), 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""
