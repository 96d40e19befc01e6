"""Types and ranges of settings, and how errors show their values."""

from __future__ import annotations

import datetime
import numbers
import os
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from gspo.config.suggestions import nearest
from gspo.safe import without_secrets

LONGEST = 80  # characters of a value in an error


def shown(value: Any, key: str = "") -> str:
    """Formats any value for an error: one short line, without secrets. `key` is the name of the value."""
    text = repr(without_secrets(value, key))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def type_of(value: Any) -> str:
    """The type of a value for an error, with its article: `an int`, `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the single type."""
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def typed(key: str, value: Any, hint: Any) -> Any:
    """Converts `value` to the field's type. Raises ValueError with the types that are allowed."""
    for kind in alternatives(hint):
        origin = typing.get_origin(kind) or kind
        if origin is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
            if not is_finite(value):
                raise ValueError(f"{key} = {shown(value, key)}: must be a finite number")
            return float(value)
        if origin is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)
        if origin is list and isinstance(value, (list, tuple)):
            return [typed(f"{key}[{i}]", item, typing.get_args(kind)[0]) for i, item in enumerate(value)]
        if origin is str and isinstance(value, (str, os.PathLike)):
            return _text(key, os.fspath(value))
        if origin is dict and isinstance(value, dict):
            _check_table(key, value)
            return dict(value)
        if origin in (bool, type(None)) and isinstance(value, origin):
            return value
    example = ", such as {name = 3}" if any(typing.get_origin(kind) is dict for kind in alternatives(hint)) else ""
    raise ValueError(f"{key} = {shown(value, key)}: must be {type_name(hint)}{example}")


def _text(key: str, text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):  # as Python reads bytes of a command line
        raise ValueError(f"{key} = {shown(text, key)}: is not UTF-8 text, so config.toml could not hold it")
    return text


def is_finite(value: Any) -> bool:
    """Whether a number is finite as a float: math.isfinite fails on an integer of more than 308 digits."""
    return bool(abs(value) <= sys.float_info.max)


def _check_table(key: str, value: Any) -> None:
    """Raises ValueError for anything in a table or list, at any depth, that config.toml cannot hold."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{key}: the name {shown(name)} is {type_of(name)}, not a string")
            _check_table(f"{key}.{name}", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_table(f"{key}[{i}]", item)
    elif not isinstance(value, (str, int, float, datetime.date, datetime.time)):
        wrong = f"{key} = {shown(value, key)}: {type_of(value)} cannot be written into config.toml"
        raise ValueError(f"{wrong}: give a string, a number, true or false, a list, or a table")


def type_name(hint: Any) -> str:
    """A field's type in words."""
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "nothing"}

    def one(kind: Any) -> str:
        origin = typing.get_origin(kind) or kind
        if origin is list:
            return f"a list of {one(typing.get_args(kind)[0]).removeprefix('a ')}s"
        return "a table" if origin is dict else names[kind]

    return " or ".join(one(kind) for kind in alternatives(hint))


def in_range(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    """Raises ValueError for a value, or an item of a list, outside the limits of its field."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            in_range(f"{key}[{i}]", item, limits)
        return
    if value is None:
        return
    if limits["choices"] and isinstance(value, str):
        if value in limits["choices"]:
            return
        allowed = ("a number, " if limits["low"] is not None else "") + ", ".join(limits["choices"])
        raise ValueError(f"{key} = {shown(value, key)}: allowed are {allowed}{nearest(value, limits['choices'])}")
    if limits["low"] is not None and value < limits["low"]:
        raise ValueError(f"{key} = {shown(value, key)}: must be at least {limits['low']}")
    if limits["high"] is not None and value > limits["high"]:
        raise ValueError(f"{key} = {shown(value, key)}: must be at most {limits['high']}")
