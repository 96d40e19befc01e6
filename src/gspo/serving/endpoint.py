"""The endpoint: OpenAI's chat completions and completions over the current policy (FastAPI)."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gspo.config import ServeConfig
from gspo.conversation.calls import Call
from gspo.conversation.chat import Asked, Chat
from gspo.ports import SamplerError
from gspo.serving.schema import Asking, ChatRequest, CompletionRequest, TrainRequest

T = TypeVar("T")
POLL = 0.5  # seconds between two looks whether a client is still there
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "invalid_request_error",
         429: "rate_limit_error"}  # fmt: skip
Train = Callable[[TrainRequest], Awaitable[dict[str, Any]]]


def failed(status: int, message: str) -> JSONResponse:
    """An error in OpenAI's shape."""
    body = {"message": message, "type": KINDS.get(status, "api_error"), "param": None, "code": None}
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": body}, status, headers)


class Limits:
    """Refuses what is unauthorised, too large or too much, before any of it is read. key: the bearer token; `open` paths
    need none.
    """

    open = ("/health",)

    def __init__(self, app: ASGIApp, key: str, config: ServeConfig) -> None:
        self.app, self.key, self.config, self.running = app, key, config, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers it."""
        if scope["type"] != "http" or scope["path"] in self.open:
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        given = headers.get(b"authorization", b"")
        refused = None
        if not secrets.compare_digest(given, b"Bearer " + self.key.encode()):
            refused = failed(401, "no or another API key: send the one of this run as a bearer token")
        elif int(headers.get(b"content-length", b"0") or 0) > self.config.max_body:
            refused = self._large()
        elif self.running >= self.config.max_concurrent:
            refused = failed(429, f"{self.running} requests are under way (serve.max_concurrent): try again later")
        if refused is not None:
            await refused(scope, receive, send)
            return
        self.running += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self.running -= 1

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body without a length is counted as it comes."""
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.config.max_body:
                raise HTTPException(413, self._too_large)
            return message

        await self.app(scope, counted, send)

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.config.max_body} bytes (serve.max_body)"

    def _large(self) -> JSONResponse:
        return failed(413, self._too_large)


def application(chat: Chat, name: str, key: str, config: ServeConfig, train: Train | None = None) -> FastAPI:
    """The ASGI application. name: the model's. key: the API key. train: what POST /v1/train does."""

    app = FastAPI(title="gspo", description="The policy that is being trained.", docs_url=None, redoc_url=None)
    app.add_middleware(Limits, key=key, config=config)
    _errors(app)

    def checked(request: Asking) -> None:
        if request.model != name:
            raise HTTPException(404, f"the model {request.model!r:.80} is not served here: it is {name!r}")

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(name)]}

    @app.get("/v1/models/{model:path}", responses=REFUSED)
    def model(model: str) -> dict[str, Any]:
        if model != name:
            raise HTTPException(404, f"the model {model!r:.80} is not served here: it is {name!r}")
        return _model(name)

    @app.post("/v1/chat/completions", responses=REFUSED)
    async def chat_completions(request: ChatRequest, http: Request) -> Any:
        checked(request)
        messages = [_asked_message(message.model_dump(exclude_none=True)) for message in request.messages]
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        asked = _asked(request, request.max_completion_tokens or request.max_tokens)
        id = f"chatcmpl-{secrets.token_hex(12)}"
        calls = await _while_there(http, chat.answer(messages, tools, asked, request.n, id), config.timeout)
        choices = [_choice(i, call, chat, bool(request.logprobs)) for i, call in enumerate(calls)]
        answer = _answer(id, "chat.completion", name, choices, calls)
        return StreamingResponse(_chat_events(answer), media_type="text/event-stream") if request.stream else answer

    @app.post("/v1/completions", responses=REFUSED)
    async def completions(request: CompletionRequest, http: Request) -> Any:
        checked(request)
        id = f"cmpl-{secrets.token_hex(12)}"
        asked = _asked(request, request.max_tokens)
        calls = await _while_there(http, chat.complete(request.prompt, asked, request.n, id), config.timeout)
        choices = [_text_choice(i, call, chat, request.logprobs is not None) for i, call in enumerate(calls)]
        answer = _answer(id, "text_completion", name, choices, calls)
        return StreamingResponse(_events(answer, choices), media_type="text/event-stream") if request.stream else answer

    if train is not None:

        @app.post("/v1/train", responses=REFUSED)
        async def train_on(request: TrainRequest) -> dict[str, Any]:
            return await train(request)

    return app


REFUSED: dict[int | str, dict[str, Any]] = {
    status: {"description": KINDS[status].replace("_", " ")} for status in (400, 401, 404, 413, 429)
}


def _errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        told = [f"{'.'.join(str(at) for at in one['loc'][1:]) or 'body'}: {one['msg']}" for one in error.errors()[:5]]
        return failed(400, "; ".join(told))

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        answer = failed(error.status_code, str(error.detail))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ValueError)
    async def wrong(request: Request, error: ValueError) -> JSONResponse:
        return failed(400, str(error))

    @app.exception_handler(SamplerError)
    async def lost(request: Request, error: SamplerError) -> JSONResponse:
        return failed(503, str(error))


async def _while_there(http: Request, answering: Awaitable[T], timeout: float) -> T:
    """What is answered, unless the client goes away or it takes too long: then it is given up."""
    task = asyncio.ensure_future(answering)
    deadline = time.monotonic() + timeout
    try:
        while not task.done():
            await asyncio.wait([task], timeout=POLL)
            if not task.done() and await http.is_disconnected():
                raise HTTPException(499, "the client went away")
            if not task.done() and time.monotonic() > deadline:
                raise HTTPException(504, f"no answer within {timeout:g} seconds (serve.timeout)")
        return task.result()
    finally:
        task.cancel()


def _asked(request: Asking, most: int | None) -> Asked:
    seed = None if request.seed is None else request.seed % (1 << 64)
    return Asked(most, request.temperature, request.top_p, request.top_k, request.ends, seed)


def _asked_message(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"role": "system"} if message["role"] == "developer" else message


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gspo"}


def _reason(call: Call) -> str:
    if call.rollout.stop == "length":
        return "length"
    return "tool_calls" if call.message.get("tool_calls") else "stop"


def _likelihoods(call: Call, chat: Chat) -> list[dict[str, Any]]:
    rollout = call.rollout
    found = []
    for token, logp in zip(rollout.tokens[rollout.sampled].tolist(), rollout.logp[rollout.sampled].tolist()):
        text = chat.decode([token])
        found.append({"token": text, "logprob": logp, "bytes": list(text.encode()), "top_logprobs": []})
    return found


def _choice(index: int, call: Call, chat: Chat, logprobs: bool) -> dict[str, Any]:
    """`id` is ours: it names the tokens that were sampled."""
    message = dict(call.message) | {"refusal": None}
    if call.message.get("tool_calls"):
        message["content"] = message["content"] or None
    return {
        "index": index, "id": call.id, "message": message, "finish_reason": _reason(call),
        "logprobs": {"content": _likelihoods(call, chat), "refusal": None} if logprobs else None,
    }  # fmt: skip


def _text_choice(index: int, call: Call, chat: Chat, logprobs: bool) -> dict[str, Any]:
    found = None
    if logprobs:
        each = _likelihoods(call, chat)
        found = {"tokens": [one["token"] for one in each], "token_logprobs": [one["logprob"] for one in each]}
    reason = "length" if call.rollout.stop == "length" else "stop"
    return {"index": index, "id": call.id, "text": call.message["content"], "finish_reason": reason, "logprobs": found}


def _answer(id: str, kind: str, name: str, choices: list[dict[str, Any]], calls: list[Call]) -> dict[str, Any]:
    read, sampled = len(calls[0].rollout.prompt.tokens), sum(call.sampled for call in calls)
    usage = {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}
    return {
        "id": id, "object": kind, "created": int(time.time()), "model": name, "choices": choices, "usage": usage,
        "system_fingerprint": f"version-{int(calls[0].rollout.version.max())}",
    }  # fmt: skip


async def _chat_events(answer: dict[str, Any]) -> AsyncIterator[str]:
    """A whole answer as the events of a stream."""
    pieces = []
    for choice in answer["choices"]:
        message, shared = choice["message"], {"index": choice["index"], "id": choice["id"], "finish_reason": None}
        pieces.append({**shared, "delta": {"role": "assistant", "content": ""}, "logprobs": None})
        if message["content"]:
            pieces.append({**shared, "delta": {"content": message["content"]}, "logprobs": choice["logprobs"]})
        if message.get("tool_calls"):
            numbered = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
            pieces.append({**shared, "delta": {"tool_calls": numbered}, "logprobs": None})
        pieces.append({**shared, "delta": {}, "finish_reason": choice["finish_reason"], "logprobs": None})
    async for event in _events(answer | {"object": "chat.completion.chunk"}, pieces):
        yield event


async def _events(answer: dict[str, Any], pieces: list[dict[str, Any]]) -> AsyncIterator[str]:
    for piece in pieces:
        chunk = {name: value for name, value in answer.items() if name != "usage"} | {"choices": [piece]}
        yield f"data: {json.dumps(chunk)}\n\n"
    yield f"data: {json.dumps(answer | {'choices': []})}\n\n"  # usage comes last
    yield "data: [DONE]\n\n"
