"""Plain data as JSON, with extensions for tuples, sets, non-string keys, long integers, NaN and infinity. Few imports."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

KIND = "!"  # marks a JSON object that encodes another type
KINDS = {"tuple": tuple, "set": set, "dict": dict}
LONG = 14_000  # bits of an integer that is written in hexadecimal: Python reads no more than 4300 decimal digits
EQUAL_HASHES = 50  # among the keys of one message: with thousands, chosen on purpose, making the set would take minutes


def packed(value: Any) -> bytes:
    """Encodes None, bool, numbers, text, and lists, tuples, sets and dicts of them. Raises ValueError for others."""
    return json.dumps(_marked(value)).encode()


def unpacked(data: bytes) -> Any:
    """Decodes the result of `packed`, with the same types. Raises ValueError for anything else."""
    try:
        return _unmarked(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no message: {data[:40]!r}") from error


def _marked(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > LONG:
        return {KIND: "int", "of": hex(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict) and KIND not in value and all(isinstance(key, str) for key in value):
        return {key: _marked(item) for key, item in value.items()}
    for name, kind in KINDS.items():
        if isinstance(value, kind):
            items = map(list, value.items()) if kind is dict else value
            return {KIND: name, "of": [_marked(item) for item in items]}
    raise ValueError(f"{type(value).__name__} is no plain data")


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if KIND not in value:
        return {key: _unmarked(item) for key, item in value.items()}
    name, of = value[KIND], _unmarked(value["of"])
    if name == "int":
        return int(of, 16)
    keys = of if name == "set" else [key for key, _ in of] if name == "dict" else []
    if max(Counter(map(hash, keys)).values(), default=0) > EQUAL_HASHES:
        raise ValueError("keys whose hashes are equal")
    return KINDS[name](of)
