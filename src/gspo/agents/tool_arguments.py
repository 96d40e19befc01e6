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
    schemas = {function.get("name"): function.get("parameters") for function in map(_function, tools)}
    return [(name, {key: _value(value, schemas.get(name), key) for key, value in values.items()}) for name, values in calls]


def _function(tool: Any) -> dict[str, Any]:
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return function if isinstance(function, dict) else {}


def _value(value: Any, schema: Any, key: str) -> Any:
    if not isinstance(value, Untyped):
        return value
    text, types = str(value), _types(_property(schema, key), schema)
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


def _property(schema: Any, key: str) -> Any:
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    found = properties.get(key) if isinstance(properties, dict) else None
    return schema.get("additionalProperties") if found is None else found


def _types(schema: Any, root: Any, depth: int = 8) -> set[str] | None:
    """The JSON types that a value may have by its schema within `root`; None if the schema does not say. `depth` limits
    recursive references.
    """
    if not isinstance(schema, dict) or not depth:
        return None
    each: list[set[str] | None] = []  # what each keyword says; None: nothing
    for keyword, value in schema.items():
        match keyword, value:
            case "type", list():
                each.append({str(name) for name in value})
            case "type", _:
                each.append({str(value)})
            case "enum", list():
                each.append({name for one in value for name in _of(one)})
            case "const", _:
                each.append(_of(value))
            case "$ref", str():
                each.append(_types(_referred(value, root), root, depth - 1))
            case "anyOf" | "oneOf", list():
                choices = [_types(one, root, depth - 1) for one in value]
                known = [types for types in choices if types is not None]
                each.append(set().union(*known) if len(known) == len(choices) else None)
            case "allOf", list():
                each += [_types(one, root, depth - 1) for one in value]
    known = [types for types in each if types is not None]
    if not known:
        return None
    return set.intersection(*known) | ({"null"} if schema.get("nullable") is True else set())  # OpenAPI's notation


def _referred(path: str, root: Any) -> Any:
    """The schema that a reference such as "#/$defs/NAME" points to."""
    found = root
    for name in path.removeprefix("#").strip("/").split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _of(value: Any) -> set[str]:
    """The JSON Schema types that a value has."""
    if isinstance(value, float) and value.is_integer():
        return {"number", "integer"}
    return TYPES[type(value)]
