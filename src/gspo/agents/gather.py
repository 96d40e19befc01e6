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

from gspo.agents.loop_thread import raise_own
from gspo.agents.trajectories import TrajectoryGroup
from gspo.config.values import type_of
from gspo.runs.progress import Progress

logger = logging.getLogger(__name__)


async def gather(
    groups: Iterable[Iterable[Awaitable[Any]]],
    *,
    at_once: int | None = None,
    max_exceptions: float = 0,
    progress: Callable[[str, int, int], None] | None = None,
    warn: Callable[[str], None] = logger.warning,
) -> list[TrajectoryGroup]:
    """Awaits runs of an agent, each of which returns a trajectory:

        groups = await gspo.gather([agent(client, question) for _ in range(8)] for question in questions)

    Args:
        groups: For each group, its runs as awaitables.
        at_once: How many run concurrently; None: all.
        max_exceptions: How many runs may fail, or which share of them if below 1.
        progress: Called with a name, the number of finished runs and their total; None: a progress bar in the terminal.
        warn: Called with a message about failures.

    Returns:
        The groups with at least two successful runs.

    Raises:
        RuntimeError: More runs failed than allowed. The rest are cancelled.
    """
    runs = [_runs(f"groups[{number}]", group, False) for number, group in enumerate(_runs("groups", groups))]
    total, done = sum(map(len, runs)), 0
    failures, limit = Counter[str](), asyncio.Semaphore(at_once or max(1, total))
    allowed = math.floor(max_exceptions * total) if 0 < max_exceptions < 1 else max_exceptions

    async def run_one(run: Awaitable[Any]) -> Any:
        nonlocal done
        try:
            result = await _trajectory(run, limit)
        except (Exception, asyncio.CancelledError) as error:
            raise_own(error)
            failures[f"{type(error).__name__}: {error}"[:200]] += 1
            if failures.total() > allowed:
                raise RuntimeError(f"max_exceptions = {max_exceptions:g}, but {_described(failures, total)}") from error
            result = error
        done += 1
        show("agent", done, total)
        return result

    with ExitStack() as stack:
        show = progress or stack.enter_context(Progress(0, title="agent")).phase
        tasks = [[asyncio.ensure_future(run_one(run)) for run in group] for group in runs]
        every = [task for group in tasks for task in group]
        try:
            await asyncio.gather(*every)
        finally:
            for task in every:
                task.cancel()
    all_groups = [TrajectoryGroup(task.result() for task in group) for group in tasks]
    kept = [group for group in all_groups if len(group) > 1]
    if failures:
        dropped = f"{len(all_groups) - len(kept)} of {len(all_groups)} groups are dropped"
        warn(f"{_described(failures, total)}; {dropped}, for fewer than two are left in them")
    return kept


async def _trajectory(run: Awaitable[Any], limit: asyncio.Semaphore) -> Any:
    """Awaits a run and returns its trajectory. Raises what the run raises, and TypeError if it returns anything else."""
    try:
        async with limit:
            result = await run
    finally:
        if inspect.iscoroutine(run):
            run.close()  # in case it never started
    if not hasattr(result, "messages_and_choices"):
        raise TypeError(f"it returned {type_of(result)}, not a trajectory")
    return result


def _described(failures: Counter[str], total: int) -> str:
    """The failed runs, by reason."""
    reasons = [f"{count} x {reason}" for reason, count in failures.most_common(3)]
    reasons += ["..."] if len(failures) > 3 else []
    return f"{failures.total()} of {total} runs of the agent failed: {', '.join(reasons)}"


def _runs(name: str, given: Any, nested: bool = True) -> list[Any]:
    """The groups, or the runs of one group, as a list. Raises ValueError for anything else."""
    alone = inspect.isawaitable(given) or not isinstance(given, Iterable)
    runs = [given] if alone else list(given)
    if alone or any(inspect.isawaitable(run) == nested for run in runs):
        raise ValueError(
            f"{name} = {given!r:.80}, {type_of(given)}: groups of runs that are still to be awaited are expected, "
            "such as [[agent(client, question) for _ in range(8)] for question in questions]"
        )
    return runs
