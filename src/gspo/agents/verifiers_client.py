"""The policy as a model client of the library `verifiers`: it samples in this process and keeps every token."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import ChatDialect

from gspo.agents.calls import Call, usage
from gspo.agents.chat import Chat, TooLong
from gspo.agents.request_options import check_granted, turn_options
from gspo.agents.tool_calls import UnknownConvention
from gspo.interfaces import SamplerError

GRANTED = {
    "model", "messages", "tools", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature",
    "top_p", "top_k", "stop",
}  # fmt: skip


class Playing:
    """A running episode."""

    def __init__(self, chat: Chat, seed: int, limit: float) -> None:
        self.chat, self.seed, self.limit = chat, seed, limit
        self.clock = asyncio.timeout(limit)  # of the environment, in seconds; paused while the policy samples
        self.calls: dict[str, list[Call]] = defaultdict(list)  # the policy's turns, by the id of their trace
        self.full = False  # whether a turn was refused because the context was full
        self.lost: SamplerError | UnknownConvention | None = None  # ends the run
        self._requests = self._pending = 0

    async def turn(self, trace: str, body: Mapping[str, Any]) -> Call:
        """Samples the turn that answers a request. Raises ProviderError if there is none."""
        seed, self._requests = self.seed + self._requests, self._requests + 1
        self._pending += 1
        self._set(None)
        try:
            check_granted(body, GRANTED)
            tools = () if body.get("tool_choice") == "none" else body.get("tools") or ()
            (call,) = await self.chat.turn(body["messages"], tools, turn_options(body, seed))
        except TooLong as error:
            self.full = True
            # Harnesses recognize a full context by this wording.
            raise vf.ProviderError(f"maximum context length: {error}", status_code=400) from error
        except (SamplerError, UnknownConvention) as error:
            self.lost = error
            raise vf.ProviderError(str(error), status_code=400) from error
        except ValueError as error:
            raise vf.ProviderError(str(error), status_code=400) from error
        finally:
            self._pending -= 1
            if not self._pending:
                self._set(asyncio.get_running_loop().time() + self.limit)
        self.calls[trace].append(call)
        return call

    def _set(self, when: float | None) -> None:
        with contextlib.suppress(RuntimeError):  # it has expired, or the episode is over
            self.clock.reschedule(when)


class PolicyClient(vf.Client):
    """Samples for all running episodes. `talks` maps the ids of their traces to them."""

    def __init__(self) -> None:
        self.talks: dict[str, Playing] = {}

    async def get_response(
        self,
        dialect: Any,
        body: dict[str, Any],
        sampling: Any,
        session_id: str | None = None,
        turn: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> vf.Response:
        """Samples one turn. Raises ProviderError for an unsupported request."""
        if not isinstance(dialect, ChatDialect):
            raise vf.ProviderError(
                f"the policy answers OpenAI's chat completions, not {type(dialect).__name__}: take a harness that uses them",
                status_code=400,
            )
        assert session_id is not None, "verifiers names the trace of each request"
        raw = chat_completion(await self.talks[session_id].turn(session_id, body))
        response = dialect.parse_response(dialect.validate_response(raw))
        response.raw = raw
        return response


def chat_completion(call: Call) -> dict[str, Any]:
    """A turn as a response of OpenAI's API."""
    message = {name: call.message[name] for name in ("role", "content", "tool_calls") if name in call.message}
    reason = "tool_calls" if "tool_calls" in message else "length" if call.rollout.stop == "length" else "stop"
    return {
        "id": call.id, "object": "chat.completion", "created": 0, "model": "policy",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": usage([call]),
    }  # fmt: skip
