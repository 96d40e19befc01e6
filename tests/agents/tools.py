"""Conversations with a completer that says anything."""

import asyncio
from types import SimpleNamespace

ASK = [{"role": "user", "content": "what is in the box"}]
MORE = {"role": "user", "content": "go on"}


def talked(talk, turns=1):
    """A conversation, and its calls."""
    items, calls = [*ASK], []
    for _ in range(turns):
        (call,) = asyncio.run(talk.turn(items))
        calls.append(call)
        items = [*items, call.message, MORE]
    return items[:-1], calls


def choice(call):
    """As OpenAI's client gives it."""
    return SimpleNamespace(id=call.id, message=SimpleNamespace(model_dump=lambda exclude_none: dict(call.message)))
