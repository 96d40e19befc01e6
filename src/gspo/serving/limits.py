"""Requests that are refused before their body is read, and the form of a refusal."""

from __future__ import annotations

import asyncio
import secrets

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gspo.config.training import ServeConfig

KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 405: "invalid_request_error",
    408: "invalid_request_error", 413: "invalid_request_error", 429: "rate_limit_error",
}  # fmt: skip


def failed(status: int, message: str) -> JSONResponse:
    """An error in OpenAI's shape."""
    body = {"message": message, "type": KINDS.get(status, "api_error"), "param": None, "code": None}
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": body}, status, headers)


class RequestLimits:
    """Checks the key, the size of the body and the number of requests, before anything is parsed.

    Attributes:
        open: Paths that need no key.
        running: Requests under way.
    """

    open = ("/health",)

    def __init__(self, app: ASGIApp, key: str, config: ServeConfig) -> None:
        self.app, self.key, self.config, self.running = app, key, config, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or refuses it."""
        if scope["type"] != "http" or scope["path"] in self.open:
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        authorization = headers.get(b"authorization", b"")
        refusal = None
        if not secrets.compare_digest(authorization, b"Bearer " + self.key.encode()):
            refusal = failed(401, "no or another API key: send the one of this run as a bearer token")
        elif int(headers.get(b"content-length", b"0") or 0) > self.config.max_body:
            refusal = failed(413, self._too_large)
        elif self.running >= self.config.max_concurrent:
            refusal = failed(429, f"{self.running} requests are under way (serve.max_concurrent): try again later")
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self.running += 1
        try:
            await self._limited(scope, receive, send)
        finally:
            self.running -= 1

    async def _limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts the body as it arrives, and gives up one that takes too long. A request that is cancelled when the server
        ends gets a 503.
        """
        received, complete, begun = 0, False, False
        end = asyncio.get_running_loop().time() + self.config.timeout

        async def counted() -> Message:
            nonlocal received, complete
            left = None if complete else end - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                problem = f"the body was not there within {self.config.timeout:g} seconds (serve.timeout)"
                raise HTTPException(408, problem) from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self.config.max_body:
                raise HTTPException(413, self._too_large)
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except asyncio.CancelledError:
            if begun:
                raise
            await failed(503, "the run has ended before there was a response")(scope, receive, send)

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.config.max_body} bytes (serve.max_body)"
