"""Types of tool-call arguments that are written as plain text, from the tool's JSON schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

Tools = Sequence[dict[str, Any]]  # in the form that chat templates read
Arguments = dict[str, Any]
TYPES = {
    type(None): {"null"}, bool: {"boolean"}, int: {"number", "integer"}, float: {"number"}, str: {"string"},
    list: {"array"}, dict: {"object"},
}  # fmt: skip


class Untyped(str):
    """An argument in tags, without a mark of its type."""


def typed(calls: Sequence[tuple[str, Arguments]], tools: Tools) -> list[tuple[str, Arguments]]:
    """Gives the `Untyped` arguments of calls the types of the tools' JSON schemas. A value that cannot be a string is parsed
    as JSON. One that may be a string stays text, unless the schema also allows the type of its JSON value. Without a type in
    the schema, it is JSON if it parses, else text.
    """
    functions = [tool.get("function", tool) for tool in tools]
    schemas = {function.get("name"): function.get("parameters") or {} for function in functions}
    return [
        (name, {key: _value(value, key, schemas.get(name, {})) for key, value in arguments.items()})
        for name, arguments in calls
    ]


def _value(value: Any, key: str, schema: dict[str, Any]) -> Any:
    if not isinstance(value, Untyped):
        return value
    properties = schema.get("properties")
    text, types = str(value), _types(properties.get(key), schema) if isinstance(properties, dict) else None
    if types == {"string"}:
        return text
    try:
        parsed = json.loads(text)
    except ValueError:
        return _python(text, types)
    return parsed if types is None or "string" not in types or _of(parsed) & types else text


def _python(text: str, types: set[str] | None) -> Any:
    """None, True and False in Python's notation, which some templates use (Qwen3-Coder), if the schema allows them."""
    known = {"True": (True, "boolean"), "False": (False, "boolean"), "None": (None, "null")}
    value, name = known.get(text.strip(), (text, "string"))
    return value if types is not None and name in types else text


def _types(schema: Any, root: dict[str, Any]) -> set[str] | None:
    """The JSON types that a value may have by its schema within `root`; None if the schema does not say."""
    if not isinstance(schema, dict):
        return None
    each: list[set[str] | None] = []  # what each keyword says; None: nothing
    for keyword, value in schema.items():
        match keyword, value:  # a keyword with null, or anything else that it cannot have, says nothing
            case "type", str():
                each.append({value})
            case "type", list():
                each.append({name for name in value if isinstance(name, str)})
            case "enum", list():
                each.append({name for one in value for name in _of(one)})
            case "const", _:
                each.append(_of(value))
            case "$ref", str():
                each.append(_types(_referred(value, root), root))
            case "anyOf" | "oneOf", list():
                choices = [_types(one, root) for one in value]
                each.append(None if None in choices else {name for types in choices for name in types or ()})
            case "allOf", list():
                each += [_types(one, root) for one in value]
    known = [types for types in each if types is not None]
    return set.intersection(*known) if known else None


def _referred(path: str, root: dict[str, Any]) -> Any:
    """The schema that a reference such as "#/$defs/NAME" points to; None if there is none."""
    found: Any = root
    for name in path.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _of(value: Any) -> set[str]:
    """The JSON Schema types that a value has."""
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return TYPES[type(value)]
