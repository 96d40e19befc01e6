"""Requests that are refused before their body is read, and the form of a refusal."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gspo.config.training import ServeConfig

KINDS = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
OPEN = "/health"  # path that needs no key


def failed(status: int, message: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's format."""
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    body = {"message": message, "type": kind, "param": None, "code": None}
    return JSONResponse({"error": body}, status, headers)


class RequestLimits:
    """Checks the key, the size of the body and the number of requests, before anything is parsed."""

    def __init__(self, app: ASGIApp, key: str, config: ServeConfig) -> None:
        self.app, self.key, self.config = app, key, config
        self.running = 0  # requests under way
        self._too_large = f"the body is larger than {config.max_body} bytes (serve.max_body)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] != "http" or scope["path"] == OPEN:
            await self.app(scope, receive, send)
        elif (refusal := self._refusal(dict(scope["headers"]))) is not None:
            await refusal(scope, receive, send)
        else:
            self.running += 1
            try:
                await self._limited(scope, receive, send)
            finally:
                self.running -= 1

    def _refusal(self, headers: Mapping[bytes, bytes]) -> JSONResponse | None:
        authorization = headers.get(b"authorization", b"")
        if not secrets.compare_digest(authorization, b"Bearer " + self.key.encode()):
            wrong = "no or another API key: send the one of this run as a bearer token"
            return failed(401, wrong, {"www-authenticate": "Bearer"})
        if int(headers.get(b"content-length", b"0")) > self.config.max_body:
            return failed(413, self._too_large)
        if self.running >= self.config.max_concurrent:
            return failed(429, f"{self.running} requests are under way (serve.max_concurrent): try again later")
        return None

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts the body as it arrives, within a time limit. A request that the end of the server cancels gets a 503."""
        received, complete, responding = 0, False, False
        end = asyncio.get_running_loop().time() + self.config.timeout

        async def receive_in_time() -> Message:
            nonlocal received, complete
            try:
                async with asyncio.timeout_at(None if complete else end):
                    message = await receive()
            except TimeoutError:
                problem = f"the body was not there within {self.config.timeout:g} seconds (serve.timeout)"
                raise HTTPException(408, problem) from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self.config.max_body:
                raise HTTPException(413, self._too_large)
            return message

        async def respond(message: Message) -> None:
            nonlocal responding
            responding = True
            await send(message)

        try:
            await self.app(scope, receive_in_time, respond)
        except asyncio.CancelledError:
            if responding:
                raise
            await failed(503, "the run has ended before there was a response")(scope, receive, send)
