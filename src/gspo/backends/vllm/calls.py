"""Requests to an engine over HTTP: each has a limit over all of it, and what comes can be read, or an EngineError tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gspo.backends.vllm.errors import EngineError, blamed
from gspo.backends.vllm.threads import at_once

GRACE = 1.0  # seconds
SHOWN = 300  # characters of an answer that errors quote


def http() -> Any:
    """The module httpx. Raises ValueError where it is not installed."""
    try:
        import httpx
    except ImportError:
        raise ValueError('sampler.engine = "vllm" needs httpx: pip install "gspo[vllm]"') from None
    return httpx


async def within(seconds: float, ask: Callable[[], Awaitable[Any]]) -> Any:
    """The response, all of it: httpx's own limits are for one read, and a server may send a byte now and then. Raises
    EngineError.
    """
    httpx = http()
    try:
        async with asyncio.timeout(seconds):
            return await ask()
    except TimeoutError:
        raise EngineError(f"it has not answered for {seconds:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise EngineError(f"{type(error).__name__} {error}") from None


def asked(method: str, url: str, seconds: float, trust_env: bool = True, **request: Any) -> Any:
    """The response to a request, whichever its status. Raises EngineError where none has come in so many seconds."""

    async def ask() -> Any:
        async with http().AsyncClient(timeout=None, trust_env=trust_env) as client:
            return await client.request(method, url, **request)

    # In a thread: this one may have a loop of its own, as a notebook's has; and to look up a name has no limit in asyncio.
    try:
        (response,) = at_once([lambda: asyncio.run(within(seconds, ask))])
        return response.result(seconds + GRACE)
    except TimeoutError:
        raise EngineError(f"it has not answered for {seconds:g} s") from None
    except (OSError, RuntimeError) as error:  # of this process, which has no files or threads left
        raise blamed(error) from error


def json_of(response: Any) -> Any:
    """What stands in the JSON of a response. Raises EngineError for what is none."""
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise EngineError(f"it answered what cannot be read ({type(error).__name__}): {shown(response.text)}") from None


def shown(answer: Any) -> str:
    """The beginning of an answer, for an error."""
    text = str(answer)
    return repr(text[:SHOWN]) if text else "nothing"
