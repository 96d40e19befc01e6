"""What is refused before any of it is read: the unauthorised, the too large, the too much; and what a refusal looks like."""

from __future__ import annotations

import asyncio
import secrets

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gspo.config.training import ServeConfig

MOST_HELD = 64  # bodies of the largest size whose bytes may be held at once
PIECE = 65536  # bytes of a response that are sent at once

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
    """Refuses what is unauthorised, too large or too much, before any of it is read. key: the bearer token; `open` paths
    need none.
    """

    open = ("/health",)

    def __init__(self, app: ASGIApp, key: str, config: ServeConfig) -> None:
        self.app, self.key, self.config, self.running, self.held = app, key, config, 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or refuses it."""
        if scope["type"] != "http" or scope["path"] in self.open:
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        authorization = headers.get(b"authorization", b"")
        if not secrets.compare_digest(authorization, b"Bearer " + self.key.encode()):
            refused = failed(401, "no or another API key: send the one of this run as a bearer token")
            await refused(scope, receive, send)
            return
        scope.get("gspo.granted", lambda: None)()
        refusal = None
        if int(headers.get(b"content-length", b"0") or 0) > self.config.max_body:
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
        """A body is counted as it comes, and given up where all of it is not there in time. Who is still without a response
        when the server ends is told so.
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
            size = len(message.get("body", b""))
            received, self.held = received + size, self.held + size
            if received > self.config.max_body:
                raise HTTPException(413, self._too_large)
            if self.held > MOST_HELD * self.config.max_body:
                problem = f"the requests under way hold {self.held} bytes ({MOST_HELD} x serve.max_body): try again later"
                raise HTTPException(429, problem)
            return message

        async def in_pieces(message: Message) -> None:
            """Sent by and by, so that a response counts as under way until it was read."""
            nonlocal begun
            begun, body = True, message.get("body", b"")
            while len(body) > PIECE:
                await send({**message, "body": body[:PIECE], "more_body": True})
                body = body[PIECE:]
            await send({**message, "body": body} if "body" in message else message)

        try:
            await self.app(scope, counted, in_pieces)
        except asyncio.CancelledError:
            if begun:
                raise
            await failed(503, "the run has ended before there was a response")(scope, receive, send)
        finally:
            self.held -= received

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.config.max_body} bytes (serve.max_body)"
