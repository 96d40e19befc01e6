"""What a misspelt word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, words: Iterable[str]) -> str:
    """`, did you mean X?`, or nothing when no known word is near."""
    close = difflib.get_close_matches(word[:100], list(words), 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""
