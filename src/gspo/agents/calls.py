"""What the policy read and sampled, call by call and token by token, until it has been trained on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gspo.types import Rollout

Message = dict[str, Any]
Key = tuple[str, str, str]  # what makes two messages equal
TEXT = "text"  # the role of a text that is to be completed
MOST = 4 << 30


@dataclass(frozen=True)
class Call:
    """One turn of the policy, and what it read before.

    id: of the turn. messages: as they were asked. message: the turn as a chat message. rendered: the messages with its
    own earlier turns in the words that were sampled. prompt_text, sampled_text: of what it read and of all that it
    sampled; words: `sampled_text` without the token that ended it, as a template shows it. rollout: the tokens of both,
    unscored. unfit: why it cannot be trained on; "" where it can.
    """

    id: str
    messages: Sequence[Message]
    message: Message
    rendered: Sequence[Message]
    prompt_text: str
    sampled_text: str
    words: str
    rollout: Rollout
    unfit: str = ""

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return int(self.rollout.sampled.sum())


def content_of(message: Message) -> str:
    """A message's text: that of its parts, where it has several. Raises ValueError for a part that is no text."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"a message has a {type(content).__name__} for its content: a text is expected")
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise ValueError(f"a message has a part that is no text, {part!r:.80}: the policy reads text alone")
        texts.append(str(part.get("text", "")))
    return "".join(texts)


def follow(trace: bytes, message: Message) -> bytes:
    """What a conversation is known by after one more message. It begins at b""; conversations of the same messages, by role,
    text and tool calls, have the same.
    """
    return hashlib.sha256(trace + json.dumps(_key(message)).encode()).digest()


def _key(message: Message) -> Key:
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments", "")
        calls.append([function.get("name"), arguments if isinstance(arguments, str) else json.dumps(arguments)])
    role = "system" if message.get("role") == "developer" else str(message.get("role"))  # as the endpoint takes it
    return role, content_of(message), json.dumps(calls)


def usage(calls: Sequence[Call]) -> dict[str, int]:
    """Tokens read and sampled, as OpenAI's API counts them: the prompt that all these calls share counts once."""
    prompt, sampled = len(calls[0].rollout.prompt.tokens), sum(call.sampled for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def size(call: Call) -> int:
    """Bytes of its tensors."""
    return sum(value.nbytes for value in vars(call.rollout).values() if isinstance(value, Tensor))


class Calls:
    """The calls of a run by id and by conversation. most: bytes of tensors that are kept; the oldest calls go first. Safe
    between threads.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most, self._held = most, 0
        self._by_id: dict[str, Call] = {}
        self._traces: dict[str, bytes] = {}  # of each call's conversation, its turn included
        self._by_trace: dict[bytes, dict[str, Call]] = {}
        self._by_text: dict[str, Call] = {}  # of completed texts alone
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, call: Call) -> None:
        """Keeps a call."""
        trace = b""
        for message in (*call.messages, call.message):
            trace = follow(trace, message)
        with self._lock:
            self._by_id[call.id], self._traces[call.id] = call, trace
            self._by_trace.setdefault(trace, {})[call.id] = call
            if call.messages[0].get("role") == TEXT:
                self._by_text[call.prompt_text + call.sampled_text] = call
            self._held += size(call)
            while self._held > self.most and len(self._by_id) > 1:
                self._drop(next(iter(self._by_id.values())))

    def get(self, id: str) -> Call | None:
        """The call of this id."""
        return self._by_id.get(id)

    def ending(self, trace: bytes) -> list[Call]:
        """The calls whose conversation, with their turn at its end, is known by `trace` (follow); newest first."""
        with self._lock:
            return list(reversed(self._by_trace.get(trace, {}).values()))

    def begun(self, text: str) -> Call | None:
        """The call whose completed text is the longest that `text` begins with."""
        with self._lock:
            for size in sorted({len(known_text) for known_text in self._by_text}, reverse=True):
                if size <= len(text) and (call := self._by_text.get(text[:size])):
                    return call
        return None

    def forget(self, before: int) -> int:
        """Drops calls that weights older than version `before` finished. Returns how many."""
        with self._lock:
            old = [call for call in self._by_id.values() if int(call.rollout.version.max()) < before]
            for call in old:
                self._drop(call)
        return len(old)

    def _drop(self, call: Call) -> None:
        del self._by_id[call.id]
        self._held -= size(call)
        trace = self._traces.pop(call.id)
        del self._by_trace[trace][call.id]
        if not self._by_trace[trace]:
            del self._by_trace[trace]
        if self._by_text.get(call.prompt_text + call.sampled_text) is call:
            del self._by_text[call.prompt_text + call.sampled_text]
