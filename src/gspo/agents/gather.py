"""Runs an agent many times concurrently, in groups. Failed runs are data: counted, reported and left out."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import Any

from gspo.agents.trajectories import TrajectoryGroup
from gspo.config.values import type_of
from gspo.runs.progress import Progress

logger = logging.getLogger(__name__)


class Gathered(list[TrajectoryGroup]):
    """The groups with at least two successful runs.

    Attributes:
        failed: Number of failed runs, by reason.
        dropped: Number of groups left out.
    """

    def __init__(self, groups: Iterable[TrajectoryGroup], failed: Counter[str], dropped: int) -> None:
        super().__init__(groups)
        self.failed, self.dropped = failed, dropped


class Tally:
    """Counts finished and failed runs.

    Attributes:
        total: Number of runs.
        done: Number of finished runs, failed ones included.
        failed: Number of failed runs, by reason.
    """

    def __init__(self, total: int, max_exceptions: float) -> None:
        self.total, self.done, self.failed = total, 0, Counter[str]()
        self.max_exceptions = max_exceptions
        self.allowed = math.floor(max_exceptions * total) if 0 < max_exceptions < 1 else max_exceptions

    def fail(self, error: Exception) -> None:
        """Counts a failed run. Raises RuntimeError if more failed than allowed."""
        self.failed[f"{type(error).__name__}: {error}"[:200]] += 1
        if self.failed.total() > self.allowed:
            count, limit = f"{self.failed.total()} of {self.total}", f"more than max_exceptions = {self.max_exceptions:g}"
            raise RuntimeError(f"{count} runs of the agent failed, {limit}: {_reasons(self.failed)}") from error

    def __str__(self) -> str:
        return f"{self.failed.total()} of {self.total} runs of the agent failed: {_reasons(self.failed)}"


async def gather(
    groups: Iterable[Iterable[Awaitable[Any]]],
    *,
    at_once: int | None = None,
    max_exceptions: float = 0,
    progress: Callable[[str, int, int], None] | None = None,
    tell: Callable[[str], None] = logger.warning,
) -> Gathered:
    """Awaits runs of an agent, each of which returns a trajectory:

        groups = await gspo.gather([agent(client, question) for _ in range(8)] for question in questions)

    Args:
        groups: For each group, its runs as awaitables.
        at_once: How many run concurrently; None: all.
        max_exceptions: How many runs may fail, or which share of them if below 1.
        progress: Called with a name, the number of finished runs and their total; None: a progress bar in the terminal.
        tell: Called with a message about failures.

    Returns:
        The groups with at least two successful runs.

    Raises:
        RuntimeError: More runs failed than allowed. The rest are cancelled.
    """
    runs = [_runs(f"groups[{number}]", group, False) for number, group in enumerate(_runs("groups", groups))]
    tally = Tally(sum(map(len, runs)), max_exceptions)
    limit = asyncio.Semaphore(at_once or max(1, tally.total))

    async def run_one(run: Awaitable[Any]) -> Any:
        try:
            async with limit:
                trajectory = await _trajectory(run)
        except Exception as error:
            tally.fail(error)
            trajectory = error
        finally:
            if inspect.iscoroutine(run):
                run.close()  # in case it never started
        tally.done += 1
        show("agent", tally.done, tally.total)
        return trajectory

    with ExitStack() as stack:
        show = progress or stack.enter_context(Progress(0, title="agent")).phase
        tasks = [[asyncio.ensure_future(run_one(run)) for run in group] for group in runs]
        try:
            await asyncio.gather(*(task for group in tasks for task in group))
        finally:
            for task in (task for group in tasks for task in group):
                task.cancel()
    all_groups = [TrajectoryGroup(task.result() for task in group) for group in tasks]
    kept_groups = [group for group in all_groups if len(group) > 1]
    dropped = len(all_groups) - len(kept_groups)
    if tally.failed:
        tell(f"{tally}; {dropped} of {len(all_groups)} groups are dropped, for fewer than two are left in them")
    return Gathered(kept_groups, tally.failed, dropped)


def _runs(name: str, given: Any, nested: bool = True) -> list[Any]:
    """The groups, or the runs of one group, as a list. Raises ValueError for anything else."""
    alone = inspect.isawaitable(given) or not isinstance(given, Iterable)
    runs = [given] if alone else list(given)
    if alone or any(inspect.isawaitable(run) == nested for run in runs):
        for run in filter(inspect.iscoroutine, runs):
            run.close()  # it never starts
        raise ValueError(
            f"{name} = {given!r:.80}, {type_of(given)}: groups of runs that are still to be awaited are expected, "
            "such as [[agent(client, question) for _ in range(8)] for question in questions]"
        )
    return runs


async def _trajectory(run: Awaitable[Any]) -> Any:
    result = await run
    if not hasattr(result, "messages_and_choices"):
        raise TypeError(f"it returned {type_of(result)}, not a trajectory")
    return result


def _reasons(failed: Counter[str]) -> str:
    return ", ".join(f"{count} x {reason}" for reason, count in failed.most_common(3)) + (", ..." if len(failed) > 3 else "")
