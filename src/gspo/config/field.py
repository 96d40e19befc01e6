"""Configuration fields with their allowed ranges."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any

SEEDS = 2**32 - 1
"""The largest seed that numpy accepts."""
COOLEST = 0.01
"""The lowest sampling temperature above 0: logits divided by less overflow."""


def opt(
    default: Any, *, low: float | None = None, high: float | None = None, choices: Collection[str] = (), path: bool = False
) -> Any:
    """A dataclass field with its allowed range. Each instance gets its own copy of a list or dict. choices: allowed strings;
    empty for any. path: whether the value may name a file or folder, so that `~` is expanded.
    """
    limits = {"low": low, "high": high, "choices": choices, "path": path}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=limits)
    return field(default=default, metadata=limits)
