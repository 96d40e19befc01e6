"""Many runs of an agent at once, in groups. Runs that fail are data: counted, told, and left out."""

from __future__ import annotations

import asyncio
import inspect
import math
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import Any

from gspo.agents.trajectories import TrajectoryGroup
from gspo.config.values import type_of
from gspo.runs.progress import Progress


class Gathered(list[TrajectoryGroup]):
    """The groups with at least two runs that ended well. failed: how many did not, by reason. dropped: groups left out."""

    def __init__(self, groups: Iterable[TrajectoryGroup], failed: Counter[str], dropped: int) -> None:
        super().__init__(groups)
        self.failed, self.dropped = failed, dropped


async def gather(
    groups: Iterable[Iterable[Awaitable[Any]]],
    *,
    at_once: int | None = None,
    max_exceptions: float = 0,
    progress: Callable[[str, int, int], None] | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> Gathered:
    """Awaits runs of an agent, each of which gives a trajectory:

        groups = await gspo.gather([agent(client, question) for _ in range(8)] for question in questions)

    at_once: how many run at a time; None: all. max_exceptions: how many may fail, or what share of them if it is below 1;
    more raise RuntimeError, and the rest are cancelled. progress: told a name, how many are done, and of how many; None: a
    bar in the terminal. tell: told what failed.
    """
    runs = [_runs(f"groups[{number}]", group, False) for number, group in enumerate(_runs("groups", groups))]
    total, done, failed = sum(map(len, runs)), 0, Counter[str]()
    allowed = math.floor(max_exceptions * total) if 0 < max_exceptions < 1 else max_exceptions
    room = asyncio.Semaphore(at_once or max(1, total))

    async def run_one(run: Awaitable[Any]) -> Any:
        nonlocal done
        try:
            async with room:
                trajectory = await _trajectory(run)
        except Exception as error:
            failed[f"{type(error).__name__}: {error}"[:200]] += 1
            if failed.total() > allowed:
                raise RuntimeError(
                    f"{failed.total()} of {total} runs of the agent failed, more than max_exceptions = {max_exceptions:g}: "
                    f"{_reasons(failed)}"
                ) from error
            trajectory = error
        finally:
            if inspect.iscoroutine(run):
                run.close()  # one that never began
        done += 1
        show("agent", done, total)
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
    if failed:
        tell(
            f"{failed.total()} of {total} runs of the agent failed: {_reasons(failed)}; {dropped} of {len(all_groups)} "
            "groups are dropped, for fewer than two are left in them"
        )
    return Gathered(kept_groups, failed, dropped)


def _runs(name: str, given: Any, nested: bool = True) -> list[Any]:
    """The groups, or the runs of one. Raises ValueError for anything else."""
    alone = inspect.isawaitable(given) or not isinstance(given, Iterable)
    runs = [given] if alone else list(given)
    if alone or any(inspect.isawaitable(run) == nested for run in runs):
        for run in filter(inspect.iscoroutine, runs):
            run.close()  # it never begins
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
