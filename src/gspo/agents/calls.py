"""What the policy read and sampled, call by call and token by token, until it has been trained on."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gspo.data.chat_template import check_text_alone, text_of
from gspo.types import Rollout

Message = dict[str, Any]
Key = tuple[str, str, str]  # what makes two messages equal
TEXT = "text"  # the role of a text that is to be completed
MOST = 4 << 30  # bytes of memory
LONGEST = 86400.0  # seconds: no conversation goes on for so long
TENSOR = 700  # bytes of an empty tensor
NUMBER = 40  # bytes of an integer in a list, which has its place there too
ALLOCATED = 8  # bytes by which an allocation is larger on average
INDEX = 1000  # bytes by which a call is found


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
    """A message's text: that of its parts, where it has several. Raises ValueError for what is no text."""
    try:
        check_text_alone(message)
        return text_of(message.get("content"))
    except ValueError as error:
        raise ValueError(f"a message {error}") from None


def follow(trace: bytes, message: Message) -> bytes:
    """What a conversation is known by after one more message. It begins at b""; conversations of the same messages, by role,
    text and tool calls, have the same.
    """
    return hashlib.sha256(trace + json.dumps(_key(message)).encode()).digest()


def _key(message: Message) -> Key:
    calls = []
    for call in message.get("tool_calls") or []:
        if not isinstance(call, dict) or not isinstance(call.get("function") or {}, dict):
            raise ValueError(f"a message has a tool call that is none: {call!r:.80}")
        function = call.get("function") or {}
        arguments = function.get("arguments", "")
        calls.append([function.get("name"), arguments if isinstance(arguments, str) else json.dumps(arguments)])
    role = "system" if message.get("role") == "developer" else str(message.get("role"))  # as the endpoint takes it
    return role, content_of(message), json.dumps(calls)


def usage(calls: Sequence[Call]) -> dict[str, int]:
    """Tokens read and sampled, as OpenAI's API counts them: the prompt that all these calls share counts once."""
    prompt, sampled = len(calls[0].rollout.prompt.tokens), sum(call.sampled for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def size(value: Any, counted: set[int]) -> int:
    """Bytes of memory that a call takes, with everything that it refers to.

    counted: ids of the objects that were counted before, which calls of one request share; those of this one are added.
    """
    if id(value) in counted or value is None:
        return 0
    counted.add(id(value))
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        first = storage.data_ptr() not in counted
        counted.add(storage.data_ptr())
        return TENSOR + first * storage.nbytes()
    own = sys.getsizeof(value) + ALLOCATED
    if isinstance(value, dict):
        return own + sum(size(key, counted) + size(item, counted) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], int):
            return own + len(value) * NUMBER
        return own + sum(size(item, counted) for item in value)
    if hasattr(value, "__dict__"):  # whose names all calls share
        return own + sys.getsizeof(vars(value)) + sum(size(item, counted) for item in vars(value).values())
    return own


@dataclass(frozen=True)
class _Kept:
    call: Call
    trace: bytes  # of its conversation, its turn included
    size: int  # bytes
    since: float  # seconds


class Calls:
    """The calls of a run by id and by conversation. The oldest go first: those beyond `most` bytes of memory, and those that
    were added more than `longest` seconds ago. Safe between threads.
    """

    def __init__(self, most: int = MOST, longest: float = LONGEST) -> None:
        self.most, self.longest, self.held = most, longest, 0  # held: bytes
        self._by_id: dict[str, _Kept] = {}
        self._by_trace: dict[bytes, dict[str, Call]] = {}
        self._by_text: dict[str, Call] = {}  # of completed texts alone
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def add(self, *calls: Call) -> None:
        """Keeps the calls of one request."""
        counted: set[int] = set()
        for call in calls:
            trace = b""
            for message in (*call.messages, call.message):
                trace = follow(trace, message)
            kept = _Kept(call, trace, INDEX + size(call, counted), time.monotonic())
            with self._lock:
                self._by_id[call.id] = kept
                self._by_trace.setdefault(trace, {})[call.id] = call
                if call.messages[0].get("role") == TEXT:
                    self._by_text[call.prompt_text + call.sampled_text] = call
                self.held += kept.size
                while self._surplus(kept.since) and len(self._by_id) > 1:
                    self._drop(next(iter(self._by_id.values())))

    def _surplus(self, now: float) -> bool:
        return self.held > self.most or now - next(iter(self._by_id.values())).since > self.longest

    def get(self, id: str) -> Call | None:
        """The call of this id."""
        kept = self._by_id.get(id)
        return None if kept is None else kept.call

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
            old = [kept for kept in self._by_id.values() if int(kept.call.rollout.version.max()) < before]
            for kept in old:
                self._drop(kept)
        return len(old)

    def _drop(self, kept: _Kept) -> None:
        call = kept.call
        del self._by_id[call.id]
        self.held -= kept.size
        del self._by_trace[kept.trace][call.id]
        if not self._by_trace[kept.trace]:
            del self._by_trace[kept.trace]
        if self._by_text.get(call.prompt_text + call.sampled_text) is call:
            del self._by_text[call.prompt_text + call.sampled_text]
