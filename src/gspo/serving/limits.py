"""What is refused before any of it is read: the unauthorised, the too large, the too much; and what a refusal looks like."""

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


class Limits:
    """Refuses what is unauthorised, too large or too much, before any of it is read. key: the bearer token; `open` paths
    need none.
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
        refused = None
        if not secrets.compare_digest(authorization, b"Bearer " + self.key.encode()):
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
        """A body without a length is counted as it comes, and one that never ends is given up."""
        received, complete = 0, False

        async def counted() -> Message:
            nonlocal received, complete
            try:
                message = await asyncio.wait_for(receive(), None if complete else self.config.timeout)
            except TimeoutError:
                problem = f"the body was not there within {self.config.timeout:g} seconds (serve.timeout)"
                raise HTTPException(408, problem) from None
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self.config.max_body:
                raise HTTPException(413, self._too_large)
            return message

        await self.app(scope, counted, send)

    @property
    def _too_large(self) -> str:
        return f"the body is larger than {self.config.max_body} bytes (serve.max_body)"

    def _large(self) -> JSONResponse:
        return failed(413, self._too_large)
