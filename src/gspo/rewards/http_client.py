"""Requests to an HTTP endpoint from any thread or event loop, with a concurrency limit, timeouts, retries and counters."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from gspo.config.import_function import describe
from gspo.config.needs import check_package

logger = logging.getLogger(__name__)

T = TypeVar("T")
NO_KEY = "none"  # sent to an endpoint without a key, since the client requires one


class Failed(Exception):
    """A request without a response after its retries, and its HTTP status if there was one. late: Whether it timed out."""

    def __init__(self, why: str, status: int | None = None, late: bool = False) -> None:
        super().__init__(why)
        self.status, self.late = status, late


class Unreadable(Exception):
    """A response without the expected content."""


def api_key_of(variable: str, where: str) -> str:
    """The API key in an environment variable that `where` names, or NO_KEY. Raises ValueError if it is not set."""
    if not variable:
        return NO_KEY
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):  # and not shown: it may be the key itself
        raise ValueError(f"{where}: expected the name of an environment variable, never the key itself")
    if key := os.environ.get(variable, "").strip():
        return key
    raise ValueError(
        f'{where} = "{variable}": this environment variable is not set. Set it to the API key, or {where} = "" for an '
        "endpoint that asks for none"
    )


class EndpointClient:
    """An endpoint with its own event loop and thread, so that one concurrency limit holds for all callers.

    Args:
        timeout: Seconds per response, retries included.
        retries: After 429, 5xx and lost connections, by the openai client with its backoff and Retry-After.
    """

    def __init__(self, name: str, url: str, key: str, timeout: float, retries: int, max_concurrent: int) -> None:
        """Raises ValueError without the package openai."""
        check_package(name, "openai")  # gspo.Judge and gspo.RewardModel come here without a configuration
        import openai

        self.name, self.url, self.timeout = name, url.rstrip("/"), timeout
        self._key, self._errors = key, openai
        self.total: Counter[str] = Counter()  # since the last call of `counts`
        self.reasons: Counter[str] = Counter()  # of unanswered questions
        self._warned: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._slots = asyncio.Semaphore(max_concurrent)
        self._client = openai.AsyncOpenAI(api_key=key, base_url=self.url, timeout=timeout, max_retries=retries)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedules a coroutine in the client's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def request(self, send: Callable[[Any], Awaitable[T]]) -> T:
        """Returns the result of `send(client)`; runs in the client's own event loop. Raises Failed."""
        async with self._slots:
            self.total["requests"] += 1
            begin = time.perf_counter()
            try:
                async with asyncio.timeout(self.timeout):
                    return await send(self._client)
            except (TimeoutError, self._errors.APITimeoutError):
                raise Failed(f"no response within {self.timeout:g} s", late=True) from None
            except self._errors.APIStatusError as error:
                why, status = f"HTTP {error.status_code}: {error.message}", error.status_code
            except self._errors.APIConnectionError as error:
                why, status = f"cannot be reached ({describe(error.__cause__ or error)})", None
            except (self._errors.OpenAIError, json.JSONDecodeError) as error:
                why, status = describe(error), None
            finally:
                self.total["seconds"] += time.perf_counter() - begin  # type: ignore[assignment]
        cleaned = why if self._key == NO_KEY else why.replace(self._key, "***")  # an endpoint may echo the key
        raise Failed(" ".join(cleaned.split())[:200], status)

    def note(self, reason: str) -> None:
        """Counts an unanswered question."""
        self.reasons[reason] += 1
        self.total["failed"] += 1

    def counts(self) -> dict[str, float]:
        """Counts since the last call. Warns of new reasons."""
        for reason, count in list(self.reasons.items()):
            if reason[:40] not in self._warned:
                self._warned.add(reason[:40])
                logger.warning(f"{self.name}: not scored {count} times: {reason}")
        total, self.total = self.total, Counter()
        return {name: float(total[name]) for name in ("requests", "cached", "retries", "failed", "tokens", "seconds")}

    def close(self) -> None:
        """Closes the client and cancels pending requests."""
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
