"""A field of the configuration, with its allowed range."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def opt(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    path: bool = False,
) -> Any:
    """A field with its allowed range: `low` and `high` are allowed themselves, `above` is not. path: it may name a file or a
    folder, which is found from `~` too.
    """
    limits = {"low": low, "above": above, "high": high, "choices": choices, "path": path}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=limits)
    return field(default=default, metadata=limits)
