"""Plain data as JSON, with extensions for tuples, sets, non-string keys, NaN and infinity. Few imports."""

from __future__ import annotations

import json
from typing import Any

KIND = "!"  # marks a JSON object that encodes another type


def packed(value: Any) -> bytes:
    """Encodes plain data as JSON: None, bool, numbers, text; lists, tuples, sets and dicts of them. Raises ValueError for
    others.
    """
    try:
        return json.dumps(_marked(value)).encode()
    except RecursionError:
        raise ValueError("the data is nested too deeply") from None


def unpacked(data: bytes) -> Any:
    """Decodes the result of `packed`, with the same types. Raises ValueError for anything else."""
    try:
        return _unmarked(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no message: {data[:40]!r}") from error


def _marked(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and KIND not in value:
            return {key: _marked(item) for key, item in value.items()}
        return {KIND: "dict", "of": [[_marked(key), _marked(item)] for key, item in value.items()]}
    for name, kind in (("tuple", tuple), ("set", set)):
        if isinstance(value, kind):
            return {KIND: name, "of": [_marked(item) for item in value]}
    raise ValueError(f"{type(value).__name__} is no plain data")


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if KIND not in value:
        return {key: _unmarked(item) for key, item in value.items()}
    items = [_unmarked(item) for item in value["of"]]
    return {"dict": dict, "tuple": tuple, "set": set}[value[KIND]](items)
