"""Tool calls in a completion, by the conventions of the chat templates that are in use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Found = tuple[str, list[tuple[str, dict[str, Any]]]]  # the text beside the calls, and each call's name and arguments


class Malformed(ValueError):
    """A completion that sets out to call a tool and does not say how."""


def tagged(text: str) -> Found:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen)."""
    calls = [_call(body, "arguments") for body in _between(text, "<tool_call>", "</tool_call>")]
    return _outside(text, "<tool_call>"), calls


def functions(text: str) -> Found:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` (Qwen3-Coder)."""
    calls = []
    for body in _between(text, "<tool_call>", "</tool_call>"):
        named = re.fullmatch(r"\s*<function=([^>\n]+)>(.*)</function>\s*", body, re.DOTALL)
        if named is None:
            raise Malformed(f"expected <function=NAME> ... </function>, got {body!r:.80}")
        pairs = re.findall(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", named[2], re.DOTALL)
        calls.append((named[1], {name: _value(value) for name, value in pairs}))
    return _outside(text, "<tool_call>"), calls


def listed(text: str) -> Found:
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]` (Mistral)."""
    before, marker, after = text.partition("[TOOL_CALLS]")
    if not marker:
        return text, []
    calls = _json(after)
    if not isinstance(calls, list):
        raise Malformed(f"expected a list after [TOOL_CALLS], got {after!r:.80}")
    return before.strip(), [_checked(call, "arguments") for call in calls]


def bare(text: str) -> Found:
    """`{"name": ..., "parameters": {...}}` as the whole completion (Llama 3)."""
    body = text.strip().removeprefix("<|python_tag|>")
    if not re.match(r'\{\s*"name"', body):
        return text, []
    return "", [_call(body, "parameters")]


# What of a template's text tells its convention, most telling first.
CONVENTIONS: tuple[tuple[str, Callable[[str], Found]], ...] = (
    ("<function=", functions),
    ("<tool_call>", tagged),
    ("[TOOL_CALLS]", listed),
    ('"parameters":', bare),
)


def convention(template: str | None) -> Callable[[str], Found] | None:
    """How a chat template has tools called; None where it knows none."""
    return next((parse for marker, parse in CONVENTIONS if template is not None and marker in template), None)


def _between(text: str, opens: str, closes: str) -> Iterator[str]:
    for part in text.split(opens)[1:]:
        body, closed, _ = part.partition(closes)
        if not closed:
            raise Malformed(f"{opens} is never closed")
        yield body


def _outside(text: str, opens: str) -> str:
    """The text before the first call; a template puts it there, and no other place."""
    return text.partition(opens)[0].strip() if opens in text else text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Malformed(f"no JSON ({error}): {text.strip()!r:.80}") from None


def _call(text: str, arguments: str) -> tuple[str, dict[str, Any]]:
    return _checked(_json(text), arguments)


def _checked(call: Any, arguments: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not _is_text(call["name"]):
        raise Malformed(f"a call without a name: {call!r:.80}")
    values = call.get(arguments, {})
    if not isinstance(values, dict):
        raise Malformed(f"{arguments} that are no object: {values!r:.80}")
    return call["name"], values


def _value(text: str) -> Any:
    """A parameter in tags: JSON where it is, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_text(name: str) -> bool:
    """False for half a surrogate pair, which JSON can write and nobody can send."""
    return name.encode("utf-8", "ignore").decode() == name
