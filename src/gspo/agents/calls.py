"""Cache of the policy's calls: the prompt tokens and sampled tokens of each turn, kept for training."""

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
Key = tuple[str, str, str]  # role, text, tool calls: messages with the same key are equal
TEXT = "text"  # role of a plain text to complete
MOST = 4 << 30  # bytes of memory for the cache
LONGEST = 86400.0  # seconds; no conversation lasts this long
TENSOR = 700  # bytes of an empty tensor
NUMBER = 40  # bytes of an integer in a list, with the list's pointer to it
ALLOCATED = 8  # average overhead of an allocation, bytes
INDEX = 1000  # bytes of a call's index entries


@dataclass(frozen=True)
class Call:
    """One turn of the policy, with the prompt that it answers.

    Attributes:
        id: Id of the turn.
        messages: The messages as requested.
        message: The turn as a chat message.
        rendered: The messages, with the policy's earlier turns worded as they were sampled.
        prompt_text: Text of the prompt.
        sampled_text: Text of all sampled tokens.
        words: `sampled_text` without the token that ended it, as a chat template shows it.
        rollout: Tokens of prompt and completion, unscored.
        unfit: Why the call cannot be trained on; empty if it can.
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
    """The text of a message, with several text parts joined. Raises ValueError for content other than text."""
    try:
        check_text_alone(message)
        return text_of(message.get("content"))
    except ValueError as error:
        raise ValueError(f"a message {error}") from None


def follow(trace: bytes, message: Message) -> bytes:
    """Hash of a conversation after one more message, chained from the hash so far (b"" at the start). Conversations with the
    same messages (role, text and tool calls) have the same hash.
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
    role = "system" if message.get("role") == "developer" else str(message.get("role"))  # as the endpoint maps it
    return role, content_of(message), json.dumps(calls)


def usage(calls: Sequence[Call]) -> dict[str, int]:
    """Token counts as in OpenAI's API. The prompt that all these calls share counts once."""
    prompt, sampled = len(calls[0].rollout.prompt.tokens), sum(call.sampled for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def size(value: Any, counted: set[int]) -> int:
    """Bytes of memory that a call takes, with everything that it refers to.

    `counted` holds the ids of objects that are already counted, since calls of one request share some. New ones are added.
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
    if hasattr(value, "__dict__"):  # attribute names are shared by all calls and not counted
        return own + sys.getsizeof(vars(value)) + sum(size(item, counted) for item in vars(value).values())
    return own


@dataclass(frozen=True)
class _Kept:
    call: Call
    trace: bytes  # hash of the conversation, this turn included
    size: int  # bytes
    since: float  # when it was added, monotonic seconds


class Calls:
    """Thread-safe cache of a run's calls, by id and by conversation. Evicts the oldest first: those beyond `most` bytes of
    memory, and those older than `longest` seconds.
    """

    def __init__(self, most: int = MOST, longest: float = LONGEST) -> None:
        self.most, self.longest, self.held = most, longest, 0  # held: bytes
        self._by_id: dict[str, _Kept] = {}
        self._by_trace: dict[bytes, dict[str, Call]] = {}
        self._by_text: dict[str, Call] = {}  # text completions only
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def add(self, *calls: Call) -> None:
        """Adds the calls of one request, and evicts old ones."""
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
        """The call with this id, or None."""
        kept = self._by_id.get(id)
        return None if kept is None else kept.call

    def ending(self, trace: bytes) -> list[Call]:
        """The calls whose conversation, including their own turn, has the hash `trace` (see `follow`); newest first."""
        with self._lock:
            return list(reversed(self._by_trace.get(trace, {}).values()))

    def begun(self, text: str) -> Call | None:
        """The text completion whose prompt and sampled text form the longest prefix of `text`, or None."""
        with self._lock:
            for size in sorted({len(known_text) for known_text in self._by_text}, reverse=True):
                if size <= len(text) and (call := self._by_text.get(text[:size])):
                    return call
        return None

    def forget(self, before: int) -> int:
        """Drops calls that were finished by weights older than version `before`. Returns how many."""
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
