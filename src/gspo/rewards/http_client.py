"""Requests to an HTTP endpoint from any thread or event loop: bounded, timed, repeated and counted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from gspo.config.import_function import describe

T = TypeVar("T")
NO_KEY = "none"
"""What is sent to an endpoint that asks for no key: the client wants one."""


class Failed(Exception):
    """A request without a response, after its retries. status: of HTTP, where there was one. late: it took too long."""

    def __init__(self, why: str, status: int | None = None, late: bool = False) -> None:
        super().__init__(why)
        self.status, self.late = status, late


class Unreadable(Exception):
    """A response that does not say what it should."""


def api_key_of(variable: str, where: str) -> str:
    """The API key in an environment variable; NO_KEY where no variable is named. Raises ValueError where it is not set.

    where: the configuration key, for the error. What is no name of a variable is not shown: it may be the key itself.
    """
    if not variable:
        return NO_KEY
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise ValueError(f"{where}: expected the name of an environment variable, never the key itself")
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(
            f'{where} = "{variable}": this environment variable is not set. Set it to the API key, or {where} = "" for an '
            "endpoint that asks for none"
        )
    return key


class EndpointClient:
    """An endpoint, with an event loop and thread of its own, so that one bound holds for all who ask.

    timeout: seconds for one response, retries included. retries: of 429, 5xx and lost connections, by the client, with its
    growing waits and as Retry-After says. total: what was counted; reasons: why there was no opinion.
    """

    def __init__(self, name: str, url: str, key: str, timeout: float, retries: int, max_concurrent: int) -> None:
        """Raises ValueError without the client's package."""
        try:
            import openai
        except ImportError:
            raise ValueError(f"{name}: asking over HTTP needs the package openai: pip install 'gspo[agents]'") from None
        self.name, self.url, self.timeout = name, url.rstrip("/"), timeout
        self._key, self._errors = key, openai
        self.total: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._reported: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(max_concurrent)
        self._client = openai.AsyncOpenAI(api_key=key, base_url=self.url, timeout=timeout, max_retries=retries)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Does the work in the line's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def request(self, send: Callable[[Any], Awaitable[T]]) -> T:
        """What `send(client)` returns; in the line's own loop. Raises Failed."""
        async with self._slots:
            self.total["requests"] += 1
            begin = time.perf_counter()
            try:
                async with asyncio.timeout(self.timeout):
                    return await send(self._client)
            except (TimeoutError, self._errors.APITimeoutError):
                raise Failed(f"no response within {self.timeout:g} s", late=True) from None
            except self._errors.APIStatusError as error:
                raise Failed(self._clean(f"HTTP {error.status_code}: {error.message}"), error.status_code) from None
            except self._errors.APIConnectionError as error:
                raise Failed(self._clean(f"cannot be reached ({describe(error.__cause__ or error)})")) from None
            except (self._errors.OpenAIError, json.JSONDecodeError) as error:
                raise Failed(self._clean(describe(error))) from None
            finally:
                self.total["seconds"] += time.perf_counter() - begin  # type: ignore[assignment]

    def _clean(self, text: str) -> str:
        """An error in one line, without the key, which an endpoint may repeat."""
        cleaned = text if self._key == NO_KEY else text.replace(self._key, "***")
        return " ".join(cleaned.split())[:200]

    def note(self, reason: str) -> None:
        """A question that got no opinion."""
        self.reasons[reason] += 1
        self.total["failed"] += 1

    def counts(self) -> dict[str, float]:
        """What was counted since this was last asked. Warns of reasons that are new."""
        for reason, count in list(self.reasons.items()):
            kind = reason[:40]
            if kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(f"{self.name}: no opinion {count} times: {reason}", stacklevel=1)
        now = self.total.copy()
        names = ("requests", "cached", "retries", "failed", "tokens", "seconds")
        new = {name: float(now[name] - self._reported[name]) for name in names}
        self._reported = now
        return new

    def close(self) -> None:
        """Ends the line; what is under way is given up."""
        if self._thread.is_alive():
            self.run(self._end())
            self._thread.join(5.0)
            if not self._loop.is_running():
                self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()
        self._loop.stop()
