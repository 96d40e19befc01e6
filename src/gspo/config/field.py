"""A field of the configuration, with its allowed range."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any

SEEDS = 2**32 - 1
"""The largest seed: numpy's."""
COOLEST = 0.01
"""The lowest sampling temperature above 0: logits divided by less overflow."""


def opt(
    default: Any,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Collection[str] = (),
    path: bool = False,
) -> Any:
    """A field with its allowed range, both ends included. path: it may name a file or a folder, found from `~` too."""
    limits = {"low": low, "high": high, "choices": choices, "path": path}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=limits)
    return field(default=default, metadata=limits)
