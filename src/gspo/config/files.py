"""Reads and writes the configuration: TOML and command-line flags. Imports nothing heavy.

Anything not understood is refused with the key, the value, what is allowed, and the nearest known key.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import textwrap
import tomllib
import typing
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

from gspo.config.checks import check
from gspo.config.names import nearest_key
from gspo.config.recipes import file_of
from gspo.config.schema import SECTIONS, STAGE, Config
from gspo.config.stages import StageConfig
from gspo.config.suggestions import nearest
from gspo.config.values import alternatives, in_range, shown, typed
from gspo.safe import without_secrets


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
    """Returns the configuration in the TOML file `path` (`recipe:NAME`; None: the defaults), changed by `overrides`: values,
    or strings as typed on a command line, by `section.key`. Raises ValueError with key, value and what is allowed.
    """
    raw = {} if path is None else read_toml(path, "configuration file")
    for section, table in nested(overrides or {}).items():
        if section == STAGE:
            _stages(table)  # raises: a command line cannot say which of the tables it means
        if not isinstance(raw.setdefault(section, {}), dict):
            raise ValueError(f"{section}: expected a table [{section}]")
        raw[section] |= table
    return from_dict(raw)


def load_of_run(path: Path, remedy: str) -> Config:
    """Loads the configuration that a run has written. Raises ValueError with the file's name and `remedy`."""
    try:
        return load(path)
    except ValueError as error:
        named = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise ValueError(f"{named}{'' if named.endswith('?') else '.'} {remedy}") from None


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Returns the tables of a TOML file, which errors call `what`. Raises ValueError with the place of the error."""
    place = Path(from_home(what, file_of(str(path))))
    try:
        text = place.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except IsADirectoryError:
        of_run = (place / "config.toml").is_file()
        remedy = f"give {place / 'config.toml'}" if of_run else "that of a model is given as model.path"
        raise ValueError(f"{path}: is a folder, and no {what}: {remedy}") from None
    except (OSError, ValueError) as error:  # ValueError: NUL in the path, or not UTF-8
        raise ValueError(f"{path}: cannot be read: {error}") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None


def nested(overrides: typing.Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Converts `section.key` -> value to nested tables. Strings are taken as typed on a command line. Raises ValueError."""
    tables: dict[str, dict[str, Any]] = {}
    for key, value in overrides.items():
        section, _, name = key.partition(".")
        if not (section and name):
            raise ValueError(f"--{key}: fields are given as --section.key VALUE{nearest_key(key, '--')}")
        tables.setdefault(section, {})[name] = _Typed(value) if isinstance(value, str) else value
    return tables


class _Typed(str):
    """A command-line value: a string until the field's type is known."""


def from_dict(raw: dict[str, Any]) -> Config:
    """A checked configuration from nested tables. Raises ValueError as `load` does."""
    sections: dict[str, Any] = {}
    for name, table in raw.items():
        name = str(name)
        if name == STAGE:
            sections[name] = _stages(table)
            continue
        if name not in SECTIONS:
            raise ValueError(_no_section(name, table))
        if not isinstance(table, dict):
            raise ValueError(f"{name} = {shown(table)}: expected a table [{name}]")
        sections[name] = _section(name, SECTIONS[name], table)
    config = Config(**sections)
    check(config)
    return config


def _stages(tables: Any) -> tuple[StageConfig, ...]:
    """Parses the [[stage]] tables. Raises ValueError."""
    if not isinstance(tables, (list, tuple)) or not all(isinstance(table, dict) for table in tables):
        example = f"`[[{STAGE}]]`, `at = 100`, `temperature = 0.8`"
        raise ValueError(f"{STAGE} = {shown(tables)}: expected [[{STAGE}]] tables, given in the file, as in {example}")
    return tuple(_section(f"{STAGE}[{number}]", StageConfig, table) for number, table in enumerate(tables))


def _keys(name: str, table: Any) -> Iterator[str]:
    """The dotted keys of a table of this name and of those within it."""
    for key, value in table.items() if isinstance(table, dict) else ():
        yield f"{name}.{key}"
        yield from _keys(f"{name}.{key}", value)


def _no_section(name: str, table: Any) -> str:
    """The error for a name that is no section, with what it probably meant."""
    if not isinstance(table, (dict, list)):
        return f"{name} = {shown(table)}: is in no section: put each key below the name of its section{nearest_key(name)}"
    near = next(filter(None, map(nearest_key, _keys(name, table))), "") or nearest(name, [*SECTIONS, STAGE])
    return f"[{name}]: unknown section; sections are {', '.join(SECTIONS)}{near}"


def as_config(
    config: Config | str | Path | dict[str, dict[str, Any]] | None, overrides: dict[str, dict[str, Any]]
) -> Config:
    """Returns a configuration, given as a file, object or nested tables, with `overrides` applied. Errors as in `load`."""
    if isinstance(config, (str, Path)):
        config = load(config)
    base = dict(config or {}) if not isinstance(config, Config) else to_dict(config)
    for section, table in overrides.items():
        both = isinstance(table, dict) and isinstance(base.get(section, {}), dict)
        base[section] = base.get(section, {}) | table if both else table  # from_dict refuses anything but a table
    return from_dict(base)


def _section(name: str, cls: type, table: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values = {}
    for key, value in table.items():
        key, full_key = str(key), f"{name}.{key}"
        if key not in fields:
            close = nearest(key, fields) if cls is StageConfig else nearest_key(full_key)
            near = close or f"; keys of [{name}] are {', '.join(fields)}"
            outer, dot, inner = key.partition(".")
            if dot and hints.get(outer) == dict[str, Any]:
                near = f"; give the whole table: {name}.{outer} = {{{inner} = ...}}"
            raise ValueError(f"{full_key} = {shown(value, full_key)}: unknown key{near}")
        if isinstance(value, _Typed):
            is_choice = value in (fields[key].metadata["choices"] or ())  # "none" may be a choice
            value = str(value) if is_choice else _from_text(full_key, str(value), hints[key])
        value = typed(full_key, value, hints[key])
        in_range(full_key, value, fields[key].metadata)
        values[key] = from_home(full_key, value) if fields[key].metadata["path"] and value else value
    return cls(**values)


def from_home(key: str, path: str) -> str:
    """Expands ~ and ~user in a path. Raises ValueError for an unknown user."""
    whole = os.path.expanduser(path) if path.startswith("~") else path
    if whole.startswith("~"):
        raise ValueError(f"{key} = {path!r}: there is no user of that name, whose home ~ would be; give the whole path")
    return whole


def _from_text(key: str, text: str, hint: Any) -> Any:
    if str in alternatives(hint) and float not in alternatives(hint):
        return None if text in ("none", "null", "") and type(None) in alternatives(hint) else text
    if type(None) in alternatives(hint) and text in ("none", "null", ""):
        return None
    if typing.get_origin(hint) is list and not text.lstrip().startswith("["):
        parts = [part.strip() for part in text.removesuffix(",").split(",")]
        if not all(parts) and text.strip():  # a comma alone may be meant: [","]
            return text
        return [_from_text(key, part, typing.get_args(hint)[0]) for part in parts if part]
    if (value := _toml_value(text)) is not None:
        return value
    try:
        return float(text)  # such as .5, which is not valid TOML
    except ValueError:
        return text


def _toml_value(text: str) -> Any:
    """The value that a text is in TOML; None if it is none, or has more after it: a comment or another line."""
    try:
        tomllib.loads(f"value = {text} =")  # valid only after a comment has begun
    except ValueError:
        with suppress(ValueError):
            if len(table := tomllib.loads(f"value = {text}")) == 1:
                return table["value"]
    return None


def to_dict(config: Config) -> dict[str, Any]:
    """Returns nested tables without the fields that are None. Stages, if any, are a list of tables under "stage"."""
    tables = dataclasses.asdict(config)
    stages = [_set(table) for table in tables.pop(STAGE)]
    return {name: _set(table) for name, table in tables.items()} | ({STAGE: stages} if stages else {})


def _set(table: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {key: value for key, value in table.items() if value is not None}


def to_toml(config: Config, comments: bool = False, secrets: bool = False, sections: Collection[str] | None = None) -> str:
    """Returns the configuration as TOML: with `comments` each field's meaning and unit above it, without `secrets` HIDDEN in
    their place. sections: those to write; None: all, and the stages.
    """
    lines: list[str] = []
    for name, cls in SECTIONS.items():
        if sections is None or name in sections:
            lines += _table(f"[{name}]", cls, getattr(config, name), comments, secrets)
    for stage in config.stage if sections is None else ():
        lines += _table(f"[[{STAGE}]]", StageConfig, stage, comments, secrets)
    return "\n".join(lines)


def _table(head: str, cls: Any, section: Any, comments: bool, secrets: bool) -> list[str]:
    """The lines of `section`, whose fields and comments are those of `cls`."""
    lines = [f"# {cls.__doc__}"] if comments else []
    lines.append(head)
    for f in dataclasses.fields(cls):
        value = getattr(section, f.name)
        value = value if secrets else without_secrets(value, f.name)
        if comments:
            lines += [f"# {line}" for line in textwrap.wrap(" ".join(docs(cls)[f.name].split()), 108)]
        if value is None:
            lines += [f"# {f.name} is not set"] if comments else []
        else:
            lines.append(f"{f.name} = {_inline(value)}")
    return [*lines, ""]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline_key(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _inline_key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")
