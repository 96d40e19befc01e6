"""HTTP requests to an engine, each with a total timeout. Returns a readable response or raises EngineError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from gspo.agents.threads import begin
from gspo.backends.vllm.errors import EngineError

SHOWN = 300  # characters of an answer to quote in errors


@contextmanager
def engine_errors(seconds: float, setting: str = "") -> Iterator[None]:
    """Turns the errors of a request with a total timeout of `seconds`, given by this setting, into EngineError."""
    try:
        yield
    except (TimeoutError, httpx.TimeoutException):
        raise EngineError(f"it has not answered for {seconds:g} s{f' ({setting})' if setting else ''}") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise EngineError(f"{type(error).__name__} {error}") from None


def send_request(
    method: str, url: str, seconds: float, trust_env: bool = True, setting: str = "", **request: Any
) -> httpx.Response:
    """The response to a request, whatever its status. Raises EngineError if none arrives in `seconds`."""
    with engine_errors(seconds, setting):
        # In a thread: httpx's timeout is that of a single read, which a slow server can satisfy one byte at a time.
        return begin(lambda: httpx.request(method, url, timeout=seconds, trust_env=trust_env, **request)).result(seconds)


def json_of(response: httpx.Response) -> Any:
    """The decoded JSON of a response. Raises EngineError if it is not JSON."""
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise EngineError(f"it answered what cannot be read ({type(error).__name__}): {shown(response.text)}") from None


def shown(answer: Any) -> str:
    """The beginning of an answer, for an error message."""
    return repr(str(answer)[:SHOWN])
