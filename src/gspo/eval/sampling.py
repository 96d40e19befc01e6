"""Samples the missing replies and scores those without a mark. Each result is on disk as soon as it exists."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from gspo.eval.faults import Faults
from gspo.eval.replies import REFUSAL, REFUSED, Key, Lines, Mark, Reply
from gspo.interfaces import Report, RewardsFailed, Scorer
from gspo.rewards.answers import final, normal
from gspo.rewards.arguments import RewardInput
from gspo.rewards.graders import spoken
from gspo.rollout.failures import all_failed, first
from gspo.types import Group, Prompt, Rollout

POLL_SECONDS = 0.5  # seconds between two checks for Ctrl-C
BATCH = 128  # replies scored in one batch


def sample(
    replies: Lines[Reply],
    todo: Sequence[Key],
    begin: Callable[[Key], Future[Any]],
    most: int,
    report: Report,
    each: bool = False,
) -> Faults:
    """Requests replies, at most `most` at once, and returns the failures of the endpoint.

    `begin` requests one, whose result has `text`, `tokens` and `stop`, or is a rollout. `each`: as in Faults. An error that
    is not the endpoint's, and Ctrl-C, propagate; replies that have arrived by then are kept.
    """
    faults = Faults({problem for problem, _ in replies.lines}, each)
    waiting = deque(todo)
    under_way: dict[Future[Any], Key] = {}
    report("sampling", 0, len(todo))

    def keep() -> list[tuple[Key, Exception]]:
        """Stores the replies that have arrived, and returns the failed ones."""
        failed: list[tuple[Key, Exception]] = []
        for future in [future for future in under_way if future.done()]:
            key = under_way.pop(future)
            try:
                answer = future.result()
            except Exception as error:
                failed.append((key, error))
                continue
            length = int(answer.sampled.sum()) if isinstance(answer, Rollout) else answer.tokens
            replies.add(Reply(*key, answer.text, length, answer.stop))
            faults.replied(key)
        return failed

    try:
        while True:
            while waiting and faults.stopped is None and len(under_way) < most:
                key = waiting.popleft()
                if faults.may_request(key[0]):
                    under_way[begin(key)] = key
            if not under_way:
                return faults
            wait(under_way, POLL_SECONDS, FIRST_COMPLETED)  # after a stop too: requests in flight are paid for
            for key, error in keep():
                faults.add(key, error)
            report("sampling", len(todo) - len(waiting) - len(under_way), len(todo))
    finally:
        keep()
        for future in under_way:
            future.cancel()


def with_thinking(prompts: Sequence[Prompt], replies: Sequence[Reply]) -> list[Prompt]:
    """The prompts of an endpoint, with `opens_thinking` if its replies show that its template opens <think>: some end a
    thinking that they did not begin, and no more than these were not cut off and have no </think>.
    """
    ended = sum("</think>" in reply.text and "<think>" not in reply.text.partition("</think>")[0] for reply in replies)
    without = sum("</think>" not in reply.text and reply.stop not in ("length", REFUSED) for reply in replies)
    opens = ended and ended >= without
    return [dataclasses.replace(prompt, opens_thinking=True) for prompt in prompts] if opens else list(prompts)


def mark(
    marks: Lines[Mark],
    replies: Sequence[Reply],
    prompts: Sequence[Prompt],
    scorer: Scorer,
    correct_threshold: float,
    report: Report,
) -> None:
    """Scores replies that have no mark. Raises RewardsFailed if a whole batch fails and none was scored before."""
    by_id = {prompt.id: prompt for prompt in prompts}
    for reply in replies:
        if reply.stop == REFUSED:
            marks.add(Mark(reply.problem, reply.sample, False, error=REFUSAL))
    todo = [reply for reply in replies if (reply.problem, reply.sample) not in marks.lines]
    for start in range(0, len(todo), BATCH):
        part = todo[start : start + BATCH]
        rollouts = [dataclasses.replace(Rollout.begun(by_id[reply.problem]), text=reply.text) for reply in part]

        def progress(done: int, before: int = start) -> None:
            report("scoring", before + done, len(todo))

        scored = scorer.score(rollouts, progress)
        worked = any(one.error is None for one in marks.lines.values())
        if not worked and (why := all_failed([Group(scored[0].prompt, scored)])):
            raise RewardsFailed(why)
        for reply, rollout in zip(part, scored):
            value = first(rollout)
            right = value is not None and value >= correct_threshold - 1e-9
            marks.add(Mark(reply.problem, reply.sample, right, vote(rollout), rollout.error))
    report("scoring", len(todo), len(todo))


def vote(rollout: Rollout) -> str | None:
    """The normalised answer of a reply, for the majority vote; None for programs, and for a reply without an answer."""
    if "answer" not in rollout.prompt.columns:
        return None
    prompt = rollout.prompt
    answer = final(spoken(RewardInput(prompt.messages, rollout.text, "", {}, prompt.opens_thinking)))
    return normal(answer) if answer else None


def shuffle_problems(todo: Sequence[Key]) -> list[Key]:
    """Shuffles the problems anew on each call: those at which an endpoint always fails must not block the others."""
    place = {problem: random.random() for problem, _ in todo}
    return sorted(todo, key=lambda key: (place[key[0]], key[1]))


def missing_keys(prompts: Sequence[Prompt], n: int, there: Any) -> Iterator[Key]:
    """The replies that are missing, problem by problem."""
    return ((prompt.id, number) for prompt in prompts for number in range(n) if (prompt.id, number) not in there)
