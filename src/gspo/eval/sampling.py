"""Samples the replies that are missing, and marks those that have no mark; each is on the disk as soon as it is there."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any

import torch

from gspo.eval.faults import Faults
from gspo.eval.replies import REFUSAL, REFUSED, Key, Lines, Mark, Reply
from gspo.interfaces import RewardsFailed, Scorer
from gspo.rewards.answers import final, normal
from gspo.rewards.arguments import RewardInput
from gspo.rewards.graders import spoken
from gspo.rollout.failures import all_failed, first
from gspo.types import Group, Prompt, Rollout

TURN = 0.5  # seconds between two looks for Ctrl-C
MARKED = 128  # replies that are scored together
Report = Callable[[str, int, int], None]


def sample(
    replies: Lines[Reply],
    todo: Sequence[Key],
    begin: Callable[[Key], Future[Any]],
    most: int,
    report: Report,
    each: bool = False,
) -> Faults:
    """Asks for the replies `todo`, `most` at once. begin: asks for one; the result has `text`, `tokens` and `stop`, or is a
    rollout. each: see Faults. Returns what an endpoint failed at. Raises what a future of another kind raises, or Ctrl-C;
    each reply that is there by then is kept.
    """
    faults = Faults({problem for problem, _ in replies.lines}, each)
    waiting = deque(todo)
    under_way: dict[Future[Any], Key] = {}
    report("sampling", 0, len(todo))

    def keep() -> list[tuple[Key, BaseException]]:
        """Records the replies that are there. Those that failed."""
        failed: list[tuple[Key, BaseException]] = []
        for future in [future for future in under_way if future.done()]:
            key = under_way[future]
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                said = future.result()
                replies.add(Reply(*key, said.text, _length(said), said.stop))
                faults.replied(key)
            else:
                failed.append((key, error))
            del under_way[future]
        return failed

    try:
        while True:
            while waiting and faults.stopped is None and len(under_way) < most:
                key = waiting.popleft()
                if faults.asks(key[0]):
                    under_way[begin(key)] = key
            if not under_way:
                return faults
            wait(under_way, TURN, FIRST_COMPLETED)  # also where nothing more is asked for: what is under way is paid for
            for key, error in keep():
                faults.add(key, error)
            report("sampling", len(todo) - len(waiting) - len(under_way), len(todo))
    finally:
        keep()
        for future in under_way:
            future.cancel()


def _length(said: Any) -> int:
    return int(said.sampled.sum()) if isinstance(said, Rollout) else said.tokens


def mark(
    marks: Lines[Mark],
    replies: Sequence[Reply],
    prompts: Sequence[Prompt],
    scorer: Scorer,
    correct_at: float,
    report: Report,
) -> None:
    """Scores the replies that have no mark yet. Raises RewardsFailed where none of those scored together got a reward, and
    none before them: then the fault is hardly the replies'.
    """
    by_id = {prompt.id: prompt for prompt in prompts}
    for reply in replies:
        if reply.stop == REFUSED:
            marks.add(Mark(reply.problem, reply.sample, False, error=REFUSAL))
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


def by_chance(todo: Sequence[Key]) -> list[Key]:
    """The same replies with their problems in an order by chance, another one each time: else those at which an endpoint
    always fails could stand before all others for ever. What a reply is does not depend on the order.
    """
    place = {problem: random.random() for problem, _ in todo}
    return sorted(todo, key=lambda key: (place[key[0]], key[1]))


def keys(prompts: Sequence[Prompt], n: int, there: Any) -> Iterator[Key]:
    """The replies that are not there yet, problem after problem."""
    return ((prompt.id, number) for prompt in prompts for number in range(n) if (prompt.id, number) not in there)
