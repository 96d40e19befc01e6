"""Cache of the policy's calls: the prompt tokens and sampled tokens of each turn, kept for training."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from torch import Tensor

from gspo.agents.tool_arguments import Tools
from gspo.data.messages import Message, templated
from gspo.types import Rollout

MOST = 4 << 30  # bytes of memory for the cache
# Bytes of memory: of a call apart from its texts and tokens, of a message, and of a token of a prompt, as text too.
CALL, MESSAGE, TOKEN = 8000, 1500, 40


@dataclass(frozen=True)
class Call:
    """One turn of the policy, with the prompt that it answers."""

    id: str
    message: Message  # the turn
    tools: str  # digest of the tools that it was offered
    words: str  # what was sampled as text, without the token that ended it
    rollout: Rollout  # prompt and completion, unscored
    untrainable: str = ""  # why it cannot be trained on; empty if it can

    @property
    def sampled(self) -> int:
        """Number of sampled tokens."""
        return int(self.rollout.sampled.sum())


def digest(tools: Tools) -> str:
    """A short text that is the same for the same tools."""
    return hashlib.sha256(json.dumps(list(tools), default=str).encode()).hexdigest()


def follow(trace: bytes, message: Message) -> bytes:
    """Hash of a conversation after one more message, from the hash so far (b"" at first): of roles, texts and tool calls,
    whose arguments may be any text of the same JSON.
    """
    readable = templated(message)
    functions = [call["function"] for call in readable.get("tool_calls", ())]
    key = readable["role"], readable["content"], [(one.get("name"), one["arguments"]) for one in functions]
    return hashlib.sha256(trace + json.dumps(key).encode()).digest()


def usage(calls: Sequence[Call]) -> dict[str, int]:
    """Token counts as in OpenAI's API. The prompt that all these calls share counts once."""
    prompt, sampled = len(calls[0].rollout.prompt.tokens), sum(call.sampled for call in calls)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def size(call: Call, sharing: int = 1) -> int:
    """About how many bytes of memory a call takes, as one of `sharing` calls of a request, which share their prompt."""
    rollout = call.rollout
    tensors = sum(value.untyped_storage().nbytes() for value in vars(rollout).values() if isinstance(value, Tensor))
    prompt = len(rollout.prompt.messages) * MESSAGE + len(rollout.prompt.tokens) * TOKEN
    return CALL + tensors + 3 * sys.getsizeof(call.words) + prompt // sharing


@dataclass(frozen=True)
class _Kept:
    call: Call
    trace: bytes  # hash of the conversation, this turn included
    size: int  # bytes


class Calls:
    """Thread-safe cache of a run's calls, by id and by conversation. Beyond MOST bytes, it evicts the oldest."""

    def __init__(self) -> None:
        self.held = 0  # bytes
        self._by_id: dict[str, _Kept] = {}
        self._by_trace: dict[bytes, dict[str, Call]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def add(self, *calls: Call) -> None:
        """Adds the calls of one request, and evicts old ones."""
        for call in calls:
            trace = reduce(follow, (*call.rollout.prompt.messages, call.message), b"")
            kept = _Kept(call, trace, size(call, len(calls)))
            with self._lock:
                self._by_id[call.id] = kept
                self._by_trace.setdefault(trace, {})[call.id] = call
                self.held += kept.size
                while self.held > MOST and len(self._by_id) > 1:
                    self._drop(next(iter(self._by_id.values())))

    def get(self, id: str) -> Call | None:
        """The call with this id, or None."""
        return kept.call if (kept := self._by_id.get(id)) else None

    def ending(self, trace: bytes) -> list[Call]:
        """The calls whose conversation, including their own turn, has the hash `trace` (see `follow`); newest first."""
        with self._lock:
            return list(reversed(self._by_trace.get(trace, {}).values()))

    def evict(self, before: int) -> None:
        """Drops calls that were finished by weights older than version `before`."""
        with self._lock:
            for kept in [kept for kept in self._by_id.values() if int(kept.call.rollout.version.max()) < before]:
                self._drop(kept)

    def _drop(self, kept: _Kept) -> None:
        call = kept.call
        del self._by_id[call.id]
        self.held -= kept.size
        del self._by_trace[kept.trace][call.id]
        if not self._by_trace[kept.trace]:
            del self._by_trace[kept.trace]
