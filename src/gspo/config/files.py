"""Reads and writes the configuration: TOML and command-line flags. Imports nothing heavy.

Whatever is not understood is refused, with the key, the value, what is allowed, and the nearest known key.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import os
import textwrap
import tomllib
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from gspo.config.checks import check, nearest
from gspo.config.schema import SECTIONS, Config


@cache
def docs(section: type) -> dict[str, str]:
    """The docstring of each field of a configuration section."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0].body  # type: ignore[attr-defined]
    texts = {}
    for node, after in zip(body, body[1:]):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[node.target.id] = str(after.value.value)  # type: ignore[union-attr]
    return texts


def load(path: str | Path | None = None, overrides: dict[str, Any] | None = None) -> Config:
    """The configuration in the TOML file `path` (None: the defaults), changed by `overrides`.

    `overrides` maps `section.key` to a value, or to a string as typed on a command line. Raises ValueError with the
    key, the value and what is allowed.
    """
    raw: dict[str, Any] = {}
    if path is not None:
        try:
            raw = tomllib.loads(Path(from_home("configuration", str(path))).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{path}: no such configuration file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from None
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: not valid TOML: {error}") from None
    for section, table in nested(overrides or {}).items():
        if not isinstance(raw.setdefault(section, {}), dict):
            raise ValueError(f"{section}: expected a table [{section}]")
        raw[section] |= table
    return from_dict(raw)


def nested(overrides: typing.Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """`section.key` -> value as nested tables. Strings are taken as typed on a command line. Raises ValueError."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if not (section and name):
            raise ValueError(f"--{key}: fields are given as --section.key VALUE{nearest_key(key)}")
        tables.setdefault(section, {})[name] = _Typed(value) if isinstance(value, str) else value
    return tables


class _Typed(str):
    """A value typed on a command line: a string until the field's type is known."""


def from_dict(raw: dict[str, Any]) -> Config:
    """A checked configuration from nested tables. Raises ValueError as `load` does."""
    sections = {}
    for name, table in raw.items():
        if name not in SECTIONS and not isinstance(table, dict):
            raise ValueError(f"{name} = {table!r}: stands in no section; each key has one{nearest_key(name)}")
        if name not in SECTIONS:
            raise ValueError(f"[{name}]: unknown section; sections are {', '.join(SECTIONS)}{nearest(name, SECTIONS)}")
        if not isinstance(table, dict):
            raise ValueError(f"{name} = {table!r}: expected a table [{name}]")
        sections[name] = _section(name, SECTIONS[name], table)
    config = Config(**sections)
    check(config)
    return config


def as_config(
    config: Config | str | Path | dict[str, dict[str, Any]] | None, overrides: dict[str, dict[str, Any]]
) -> Config:
    """A configuration from a file, another one or nested tables, and nested tables of changes. Errors as in `load`."""
    if isinstance(config, (str, Path)):
        config = load(config)
    base = dict(config or {}) if not isinstance(config, Config) else to_dict(config)
    for section, table in overrides.items():
        both = isinstance(table, dict) and isinstance(base.get(section, {}), dict)
        base[section] = base.get(section, {}) | table if both else table  # from_dict refuses what is no table
    return from_dict(base)


def _section(name: str, cls: type, table: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for key, value in table.items():
        full_key = f"{name}.{key}"
        if key not in fields:
            near = nearest_key(full_key) or f"; keys of [{name}] are {', '.join(fields)}"
            outer, dot, inner = key.partition(".")
            if dot and hints.get(outer) == dict[str, Any]:
                near = f"; give the whole table, as in --{name}.{outer} '{{{inner} = ...}}'"
            raise ValueError(f"{full_key} = {value!r}: unknown key{near}")
        if isinstance(value, _Typed):
            is_choice = value in (fields[key].metadata["choices"] or ())  # "none" may be one
            value = str(value) if is_choice else _from_text(full_key, str(value), hints[key])
        value = _typed(full_key, value, hints[key])
        _in_range(full_key, value, fields[key].metadata)
        values[key] = from_home(full_key, value) if fields[key].metadata["path"] and value else value
    return cls(**values)


def from_home(key: str, path: str) -> str:
    """A path with ~ and ~user as folders. Raises ValueError where there is no such user."""
    whole = os.path.expanduser(path) if path.startswith("~") else path
    if whole.startswith("~"):
        raise ValueError(f"{key} = {path!r}: there is no user of that name, whose home ~ would be; give the whole path")
    return whole


def all_keys() -> list[str]:
    """Every `section.key`."""
    return [f"{name}.{f.name}" for name, cls in SECTIONS.items() for f in dataclasses.fields(cls)]


def nearest_key(word: str) -> str:
    """As `nearest`, among the keys of every section, those of the word's own first. `word`: with or without a section."""
    section, _, name = word.rpartition(".")
    keys = sorted(all_keys(), key=lambda key: not key.startswith(f"{section}."))
    names = [key.partition(".")[2] for key in keys]
    close = difflib.get_close_matches(name, names, 1, 0.7)
    return f", did you mean {keys[names.index(close[0])]}?" if close else ""


def _from_text(key: str, text: str, hint: Any) -> Any:
    if str in _alternatives(hint) and float not in _alternatives(hint):
        return None if text in ("none", "null", "") and type(None) in _alternatives(hint) else text
    if type(None) in _alternatives(hint) and text in ("none", "null", ""):
        return None
    if typing.get_origin(hint) is list and not text.lstrip().startswith("["):
        return [_from_text(key, part.strip(), typing.get_args(hint)[0]) for part in text.split(",") if part.strip()]
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return float(text)  # 1e5, which TOML reads, and 1E5 or .5, which it does not
    except ValueError:
        return text


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def _typed(key: str, value: Any, hint: Any) -> Any:
    """`value` as the field's type, or a ValueError that names what is allowed."""
    for kind in _alternatives(hint):
        origin = typing.get_origin(kind) or kind
        if origin is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{key} = {value}: must be a finite number")
            return float(value)
        if origin is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if origin is list and isinstance(value, (list, tuple)):
            return [_typed(f"{key}[{i}]", item, typing.get_args(kind)[0]) for i, item in enumerate(value)]
        if origin in (str, bool, dict, type(None)) and isinstance(value, origin):
            return dict(value) if origin is dict else value
    example = ", such as {name = 3}" if any(typing.get_origin(kind) is dict for kind in _alternatives(hint)) else ""
    raise ValueError(f"{key} = {value!r}: expected {type_name(hint)}{example}, got {type(value).__name__}")


def type_name(hint: Any) -> str:
    """A field's type in words."""
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", type(None): "nothing"}

    def one(kind: Any) -> str:
        origin = typing.get_origin(kind) or kind
        if origin is list:
            return f"a list of {one(typing.get_args(kind)[0]).removeprefix('a ')}s"
        return "a table" if origin is dict else names[kind]

    return " or ".join(one(kind) for kind in _alternatives(hint))


def _in_range(key: str, value: Any, limits: typing.Mapping[str, Any]) -> None:
    if value is None:
        return
    if limits["choices"] and isinstance(value, str):
        if value in limits["choices"]:
            return
        numbers = "a number, " if limits["above"] is not None or limits["low"] is not None else ""
        allowed = numbers + ", ".join(limits["choices"])
        raise ValueError(f"{key} = {value!r}: allowed are {allowed}{nearest(value, limits['choices'])}")
    if limits["low"] is not None and value < limits["low"]:
        raise ValueError(f"{key} = {value!r}: must be at least {limits['low']}")
    if limits["above"] is not None and value <= limits["above"]:
        raise ValueError(f"{key} = {value!r}: must be above {limits['above']}")
    if limits["high"] is not None and value > limits["high"]:
        raise ValueError(f"{key} = {value!r}: must be at most {limits['high']}")


def to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Nested tables, without the fields that are None."""
    tables = dataclasses.asdict(config)
    return {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}


def to_toml(config: Config, comments: bool = False) -> str:
    """The resolved configuration as TOML; with `comments`, each field's meaning and unit above it."""
    lines: list[str] = []
    for name, cls in SECTIONS.items():
        section = getattr(config, name)
        if comments:
            lines += [f"# {cls.__doc__}"]
        lines.append(f"[{name}]")
        for f in dataclasses.fields(cls):
            value = getattr(section, f.name)
            if comments:
                lines += [f"# {line}" for line in textwrap.wrap(docs(cls)[f.name], 108)]
            if value is None:
                lines += [f"# {f.name} is not set"] if comments else []
            else:
                lines.append(f"{f.name} = {_inline(value)}")
        lines.append("")
    return "\n".join(lines)


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _inline_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
