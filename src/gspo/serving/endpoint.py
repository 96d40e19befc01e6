"""The endpoint: OpenAI's chat completions, sampled from the current policy (FastAPI)."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException as AnyHTTPException

from gspo.agents.calls import Call, usage
from gspo.agents.chat import Chat
from gspo.agents.request_options import turn_options
from gspo.config.training import ServeConfig
from gspo.distributed.ranks import RankLost
from gspo.interfaces import SamplerError
from gspo.learner.memory import OutOfMemory
from gspo.serving.earlier_steps import EarlierSteps
from gspo.serving.limits import RequestLimits, failed
from gspo.serving.schema import ChatRequest, TrainRequest

T = TypeVar("T")
STEP = re.compile(r"\d{1,9}", re.ASCII)
RETRY_AFTER = 30  # Retry-After in seconds, while a run on several ranks restarts
Train = Callable[[TrainRequest], Awaitable[dict[str, Any]]]


class RunEnded(RuntimeError):
    """The run has ended and trains no more."""


HANDLED = (
    RequestValidationError, AnyHTTPException, ValueError, SamplerError, RunEnded, RankLost, OutOfMemory, Exception
)  # fmt: skip


def application(chat: Chat, earlier: EarlierSteps, name: str, key: str, config: ServeConfig, train: Train) -> FastAPI:
    """The ASGI application: the policy under this name, also after an `earlier` step, behind an API key."""
    app = FastAPI(openapi_url=None, exception_handlers=dict.fromkeys(HANDLED, _failure))
    app.add_middleware(RequestLimits, key=key, config=config)

    def step_of(model: str) -> int | None:
        """The step in NAME@STEP; None for the name alone. Raises HTTPException for another model."""
        step = model.removeprefix(f"{name}@")
        if model == name:
            return None
        if step == model or not STEP.fullmatch(step):
            raise HTTPException(404, f"the model {model!r:.80} is not served here: it is {name!r}, or {name}@STEP")
        return int(step)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name)]}

    @app.get("/v1/models/{model:path}")
    def model(model: str) -> dict[str, Any]:
        step_of(model)
        return _model(model)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: ChatRequest, http: Request) -> Any:
        step = step_of(request.model)
        messages = [message.model_dump(exclude_none=True) for message in request.messages]
        offered = () if request.tool_choice == "none" else request.tools or ()
        tools = [tool.model_dump(exclude_none=True) for tool in offered]
        id = f"chatcmpl-{secrets.token_hex(12)}"
        asked = messages, tools, turn_options(dict(request), request.seed), request.n, id
        turns = chat.turn(*asked) if step is None else earlier.turn(step, *asked)
        calls = await _while_connected(http, turns, config.timeout)
        return _response(request, id, [_choice(i, call, chat, request) for i, call in enumerate(calls)], calls)

    @app.post("/v1/train")
    async def train_on(request: TrainRequest) -> dict[str, Any]:
        return await train(request)

    return app


async def _failure(request: Request, error: Exception) -> JSONResponse:
    """The response to a request that failed."""
    match error:
        case RequestValidationError():
            problems = [f"{'.'.join(map(str, found['loc'][1:])) or 'body'}: {found['msg']}" for found in error.errors()[:5]]
            return failed(400, "; ".join(problems))
        case AnyHTTPException():
            return failed(error.status_code, str(error.detail), error.headers)
        case ValueError():
            return failed(400, str(error))
        case SamplerError() | RunEnded():
            return failed(503, str(error))
        case RankLost() | OutOfMemory():
            return failed(503, f"{error}: the run goes on from its last checkpoint", {"retry-after": str(RETRY_AFTER)})
        case _:
            return failed(500, f"{type(error).__name__}: {error}")


async def _while_connected(http: Request, work: Awaitable[T], timeout: float) -> T:
    """Awaits `work`. Cancels it if the client disconnects, or after `timeout` seconds."""
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(http.receive())  # the body was read, so the next message is the disconnect
    try:
        done, _ = await asyncio.wait([task, disconnected], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task in done:
            return task.result()
        if disconnected in done:
            raise HTTPException(499, "the client went away")
        raise HTTPException(504, f"no response within {timeout:g} seconds (serve.timeout)")
    finally:
        task.cancel()
        disconnected.cancel()


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gspo"}


def _choice(index: int, call: Call, chat: Chat, request: ChatRequest) -> dict[str, Any]:
    """A choice of a chat completion. `id` is our extension: it identifies the sampled tokens."""
    rollout, logprobs = call.rollout, None
    message = dict(call.message) | {"refusal": None}
    if calls := message.get("tool_calls"):
        message["content"] = message["content"] or None
        message["tool_calls"] = [{"index": i, **called} for i, called in enumerate(calls)] if request.stream else calls
    if request.logprobs:
        texts = [chat.decode([token]) for token in rollout.tokens[rollout.sampled].tolist()]
        pairs = zip(texts, rollout.logp[rollout.sampled].tolist())
        whole = [(t, x, None if "\ufffd" in t else list(t.encode())) for t, x in pairs]  # None: part of a character
        entries = [{"token": t, "logprob": x, "bytes": b, "top_logprobs": []} for t, x, b in whole]
        logprobs = {"content": entries, "refusal": None}
    reason = "length" if rollout.stop == "length" else "tool_calls" if calls else "stop"
    key = "delta" if request.stream else "message"
    return {"index": index, "id": call.id, key: message, "finish_reason": reason, "logprobs": logprobs}


def _response(request: ChatRequest, id: str, choices: list[dict[str, Any]], calls: list[Call]) -> dict[str, Any] | Response:
    """A response, or a stream of it: an event for each choice and, if asked for, one for the usage, all at once."""
    body = {
        "id": id, "object": "chat.completion" + ".chunk" * bool(request.stream), "created": int(time.time()),
        "model": request.model, "system_fingerprint": f"version-{int(calls[0].rollout.version.max())}",
    }  # fmt: skip
    whole = body | {"choices": choices, "usage": usage(calls)}
    if not request.stream:
        return whole
    chunks = [body | {"choices": [choice]} for choice in choices]
    if (request.stream_options or {}).get("include_usage"):
        chunks.append(whole | {"choices": []})
    events = [*map(json.dumps, chunks), "[DONE]"]
    return Response("".join(f"data: {event}\n\n" for event in events), media_type="text/event-stream")
