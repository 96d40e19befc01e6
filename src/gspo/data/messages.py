"""Chat messages, checked and in the one form that chat templates read, whether they come from a row or from an agent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gspo.config.values import type_of
from gspo.data.media import is_media

Message = dict[str, Any]
_ALONE = "the policy reads and is trained on text alone, whatever its model can read. Leave such parts or their rows out"


def templated(message: Mapping[str, Any]) -> Message:
    """A message as chat templates read it: without empty keys, its content a string, the arguments of its tool calls an
    object. Raises ValueError for a message without a role, with a malformed tool call, or with content other than text.
    """
    readable = {name: value for name, value in message.items() if value not in (None, "")}
    readable |= {"role": role_of(message), "content": content_of(message)}
    readable.pop("tool_calls", None)
    calls = [
        {"id": call.get("id") or "", "type": "function", "function": function | {"arguments": _arguments(function)}}
        for call, function in zip(calls_of(message), functions_of(message))
    ]
    return readable | ({"tool_calls": calls} if calls else {})


def _arguments(function: Mapping[str, Any]) -> Any:
    """The arguments of a call as an object; text that is no JSON as it is."""
    given = function.get("arguments")
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):  # a model may write anything
            given = json.loads(given.strip() or "{}")
    return {} if given is None else given


def content_of(message: Mapping[str, Any]) -> str:
    """The text of a message. Raises ValueError for other content, and for an image or sound beside it, where templates read
    it.
    """
    for name, value in message.items():
        if name not in ("content", "tool_calls") and is_media(str(name), value):
            raise ValueError(f"a message has {name!r}, which is no text: {_ALONE}")
    try:
        return text_of(message.get("content"))
    except ValueError as error:
        raise ValueError(f"a message {error}") from None


def role_of(message: Mapping[str, Any]) -> str:
    """The role of a message for a chat template. Raises ValueError for a message without a role."""
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"a message has no role: {message!r:.80}")
    if role in ("human", "gpt"):
        raise ValueError(f"a message has the role {role!r}: templates have the roles user and assistant, so rename it")
    return "system" if role == "developer" else role


def calls_of(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The tool calls of a message. Raises ValueError if they are malformed."""
    if message.get("function_call"):
        raise ValueError("a message has function_call, which templates do not read: give it as one of tool_calls")
    calls = message.get("tool_calls") or []
    calls = calls if isinstance(calls, list) else [calls]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("function") or {}, dict):
            raise ValueError(f"a message has a tool call that is none: {call!r:.80}")
    return calls


def functions_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Names and arguments of a message's tool calls, which may stand in the call itself. Raises ValueError."""
    return [call.get("function") or {k: call[k] for k in ("name", "arguments") if k in call} for call in calls_of(message)]


def check_messages(prompt: Any) -> None:
    """Raises ValueError unless `prompt` is a non-empty list of messages with a role and text content, or tool calls."""
    if not isinstance(prompt, list):
        raise ValueError(f"is {type_of(prompt)}; expected a string or a list of chat messages")
    if not prompt:
        raise ValueError("is an empty list of messages")
    for i, message in enumerate(prompt):
        if not isinstance(message, dict) or not ("content" in message or message.get("tool_calls")):
            raise ValueError(f"message {i} is {message!r:.80}; expected {{'role': ..., 'content': ...}}")
        try:
            templated(message)
            if not all(isinstance(name := function.get("name"), str) and name for function in functions_of(message)):
                raise ValueError("has a tool call without a name")
        except ValueError as error:
            raise ValueError(f"message {i} {str(error).removeprefix('a message ')}") from None


def text_of(content: Any) -> str:
    """The text of a message's content: a string, the text parts of a list, or none. Raises ValueError for other parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"has {type_of(content)} for its content: a text is expected")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(f"has a part that is no text, {part!r:.80}: {_ALONE}")
        if any(is_media(str(name), value) for name, value in part.items() if name != "text"):
            raise ValueError(f"has a part with more than text, {part!r:.80}: {_ALONE}")
    return "".join(part["text"] for part in content)


def without_filling(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of an Arrow table without the keys that Arrow adds to its messages and tools: those of all others, with null."""
    return {name: _pruned(value) if name == "tools" or _are_messages(value) else value for name, value in row.items()}


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "role" in one for one in value)


def _pruned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pruned(item) for key, item in value.items() if item is not None}
    return [_pruned(item) for item in value] if isinstance(value, list) else value
