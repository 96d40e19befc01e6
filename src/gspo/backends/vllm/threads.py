"""Concurrent calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from gspo.agents.threads import begin

Result = TypeVar("Result")


def at_once(calls: Sequence[Callable[[], Result]]) -> list[Future[Result]]:
    """Starts each call in its own thread (`begin`) and returns the futures."""
    return [begin(call) for call in calls]
