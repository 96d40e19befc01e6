"""HTTP requests to an engine, each with a total timeout. Returns a readable response or raises EngineError."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gspo.agents.threads import begin
from gspo.backends.vllm.errors import EngineError, blamed

GRACE = 1.0  # seconds
SHOWN = 300  # characters of an answer to quote in errors


def http() -> Any:
    """The module httpx."""
    import httpx

    return httpx


async def within(seconds: float, ask: Callable[[], Awaitable[Any]]) -> Any:
    """Awaits the complete response with a total timeout; httpx's timeouts apply to a single read, which a slow server can
    satisfy one byte at a time. Raises EngineError.
    """
    httpx = http()
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except TimeoutError:
        raise EngineError(f"it has not answered for {seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise EngineError(f"{type(error).__name__} {error}") from None


def send_request(method: str, url: str, seconds: float, trust_env: bool = True, **request: Any) -> Any:
    """The response to a request, whatever its status. Raises EngineError if none arrives in `seconds`."""

    async def ask() -> Any:
        async with http().AsyncClient(timeout=None, trust_env=trust_env) as client:
            return await client.request(method, url, **request)

    # In a thread: this one may already run an event loop (a notebook), and asyncio cannot time out a DNS lookup.
    try:
        return begin(lambda: asyncio.run(within(seconds, ask))).result(seconds + GRACE)
    except TimeoutError:
        raise EngineError(f"it has not answered for {seconds:g} s") from None
    except (OSError, RuntimeError) as error:  # this process is out of file descriptors or threads
        raise blamed(error) from error


def json_of(response: Any) -> Any:
    """The decoded JSON of a response. Raises EngineError if it is not JSON."""
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise EngineError(f"it answered what cannot be read ({type(error).__name__}): {shown(response.text)}") from None


def shown(answer: Any) -> str:
    """The beginning of an answer, for an error message."""
    text = str(answer)
    return repr(text[:SHOWN]) if text else "nothing"
