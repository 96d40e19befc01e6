"""Samples the replies that are missing, and marks those that have no mark; each is on the disk as soon as it is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from typing import Any

import torch

from gspo.benchmark.replies import Key, Lines, Mark, Reply
from gspo.ports import RewardsFailed, Scorer
from gspo.rewards.answers import final, normal
from gspo.rewards.arguments import RewardInput
from gspo.rewards.graders import spoken
from gspo.rollout.failures import all_failed, first
from gspo.types import Group, Prompt, Rollout

TURN = 0.5  # seconds between two looks for Ctrl-C
MARKED = 128  # replies that are scored together
Report = Callable[[str, int, int], None]


def sample(
    replies: Lines[Reply], todo: Sequence[Key], begin: Callable[[Key], Future[Any]], most: int, report: Report
) -> None:  # fmt: skip
    """Asks for the replies `todo`, `most` at once. begin: asks for one; the result has `text`, `tokens` and `stop`, or is a
    rollout. Raises what a future raises that fails, or Ctrl-C; each reply that is there by then is kept.
    """
    waiting = iter(todo)
    under_way: dict[Future[Any], Key] = {}
    report("sampling", 0, len(todo))

    def keep() -> list[Future[Any]]:
        """Records the replies that are there. The rest of what has ended."""
        ended = [future for future in under_way if future.done()]
        failed = [future for future in ended if future.cancelled() or future.exception()]
        for future in ended:
            if future not in failed:
                said = future.result()
                replies.add(Reply(*under_way[future], said.text, _length(said), said.stop))
                del under_way[future]
        return failed

    begun = 0
    try:
        while True:
            for key in islice(waiting, most - len(under_way)):
                under_way[begin(key)] = key
                begun += 1
            if not under_way:
                return
            wait(under_way, TURN, FIRST_COMPLETED)
            for future in keep():
                future.result()
            report("sampling", begun - len(under_way), len(todo))
    finally:
        keep()
        for future in under_way:
            future.cancel()


def _length(said: Any) -> int:
    return int(said.sampled.sum()) if isinstance(said, Rollout) else said.tokens


def mark(
    marks: Lines[Mark], replies: Sequence[Reply], prompts: Sequence[Prompt], scorer: Scorer, correct_at: float,
    report: Report,
) -> None:  # fmt: skip
    """Scores the replies that have no mark yet. Raises RewardsFailed where none of those scored together got a reward, and
    none before them: then the fault is hardly the replies'.
    """
    by_id = {prompt.id: prompt for prompt in prompts}
    todo = [reply for reply in replies if (reply.problem, reply.sample) not in marks.lines]
    for start in range(0, len(todo), MARKED):
        part = todo[start : start + MARKED]
        rollouts = [_rollout(by_id[reply.problem], reply) for reply in part]

        def told(done: int, before: int = start) -> None:
            report("scoring", before + done, len(todo))

        scored = scorer.score(rollouts, told)
        worked = any(one.error is None for one in marks.lines.values())
        if not worked and (why := all_failed([Group(scored[0].prompt, scored)])):
            raise RewardsFailed(why)
        for reply, rollout in zip(part, scored):
            value = first(rollout)
            right = value is not None and value >= correct_at - 1e-9
            marks.add(Mark(reply.problem, reply.sample, right, vote(rollout), rollout.error))
    report("scoring", len(todo), len(todo))


def _rollout(prompt: Prompt, reply: Reply) -> Rollout:
    return dataclasses.replace(Rollout.begun(prompt), tokens=torch.tensor(prompt.tokens, dtype=torch.long), text=reply.text)


def vote(rollout: Rollout) -> str | None:
    """The answer of a reply to a problem that has one, as it votes; None for programs, and where there is no answer."""
    if "answer" not in rollout.prompt.columns:
        return None
    prompt = rollout.prompt
    answer = final(spoken(RewardInput(prompt.messages, rollout.text, "", {}, prompt.opens_thinking)))
    return normal(answer) if answer else None


def in_tenths(note: Callable[[str], None], report: Report) -> Report:
    """`report`, and a line at each tenth of the way, for those who read no live view."""
    told: dict[str, int] = {}

    def both(phase: str, done: int, total: int) -> None:
        report(phase, done, total)
        tenth = 10 * done // total if total else 0
        if tenth > told.get(phase, 0):
            told[phase] = tenth
            note(f"{phase}: {done} of {total} replies")

    return both


def keys(prompts: Sequence[Prompt], n: int, there: Any) -> Iterator[Key]:
    """The replies that are not there yet, problem after problem."""
    return ((prompt.id, number) for prompt in prompts for number in range(n) if (prompt.id, number) not in there)
