"""Completions without a reward: how many, for which reason most of them, and when that ends a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gspo.data.reward_bounds import NO_OPINION
from gspo.interfaces import RewardsFailed
from gspo.types import Group, Rollout

FAILING = 3
"""Steps in a row without any reward that end a run whose rewards worked before, or that had no opinion from the start."""
AGAIN = 20
"""Steps after which an error that most failed completions have is told of again."""
NO_FIRST = "the first reward function had no opinion"
_DETAIL = re.compile(r"""(?<!\w)(?:'[^']*(?:'|$)|"[^"]*(?:"|$))|\d[\d.,]*(?:e[-+]?\d+)?""")
"""What errors of one kind differ in: numbers, and what they quote of a completion, which may be cut off."""


def failed(rollout: Rollout) -> bool:
    """Whether a completion counts as wrong for want of a value: it has no reward, or none of the first function."""
    return rollout.reward is None or first(rollout) is None


def first(rollout: Rollout) -> float | None:
    """What the first reward function gave, before its weight."""
    return next(iter(rollout.reward_parts.values()), rollout.reward)


def errors(groups: Sequence[Group]) -> list[str | None]:
    """Why each completion has no reward; None where it has one."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return [None if rollout.reward is not None else rollout.error or NO_OPINION for rollout in rollouts]


def eval_errors(groups: Sequence[Group]) -> list[str | None]:
    """Why each completion counts as wrong unseen; None where the first function scored it."""
    unscored = [failed(rollout) for group in groups for rollout in group.rollouts]
    return [error or (NO_FIRST if none else None) for error, none in zip(errors(groups), unscored)]


def kind(error: str) -> str:
    """An error without what others of its kind may differ in."""
    return _DETAIL.sub("#", error)


def commonest(errors: Sequence[str | None]) -> tuple[str, int]:
    """The first error of the commonest kind, and how many are of this kind; "" and 0 where there is none."""
    there = [error for error in errors if error is not None]
    ((most, count),) = Counter(map(kind, there)).most_common(1) or [("", 0)]
    return next((error for error in there if kind(error) == most), ""), count


def cause(errors: Sequence[str | None], example: str = "") -> str:
    """The commonest error with its count, its share and a remedy, to stand after how many failed. example: one of its kind
    to show in its place.
    """
    why, count = commonest(errors)
    if why == NO_OPINION:
        remedy = "return a number, 0 for a bad completion"
    else:
        remedy = "mend what gives the reward" + (", or raise reward.timeout" if "(reward.timeout)" in why else "")
    return f"the commonest reason, of {count} ({count / len(errors):.0%}): {example or why}; {remedy}"


def all_failed(groups: Sequence[Group]) -> str:
    """Why no completion of a batch got a reward, or an empty string where one did."""
    found = errors(groups)
    if not found or None in found:
        return ""
    return f"none of {len(found)} completions got a reward; {cause(found)}"


class Failures:
    """Counts the steps without any reward, and says when they must end the run: the first one at once where rewards raise
    or return what is no reward, else FAILING of them in a row. A run that is resumed begins anew.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.worked = False
        self._told: dict[str, tuple[int, str]] = {}  # of each kind of error: when last, and the one that was shown

    def check(self, groups: Sequence[Group], step: int) -> None:
        """Raises RewardsFailed where the run must end after this step."""
        if why := self.see(groups):
            raise RewardsFailed(f"step {step}: {why}. Nothing was learned; rollouts.jsonl has the error of each completion")

    def see(self, groups: Sequence[Group]) -> str:
        """Why the run must end after this step, or an empty string."""
        why = all_failed(groups)
        self.worked |= not why
        self.in_a_row = self.in_a_row + 1 if why else 0
        at_once = not self.worked and NO_OPINION not in why
        if not why or (self.in_a_row < FAILING and not at_once):
            return ""
        return why if self.in_a_row == 1 else f"in {self.in_a_row} steps in a row {why}"

    def told(self, errors: Sequence[str | None], step: int) -> tuple[str, bool]:
        """What to say of a step's completions without a reward, "" where there is none; and whether it is news. It reads
        the same but for its numbers while the commonest error is of one kind.
        """
        why, _ = commonest(errors)
        if not why:
            return "", False
        last, example = self._told.get(kind(why), (step - AGAIN, why))
        news = step - last >= AGAIN
        if news:
            self._told[kind(why)] = step, example
        lost = sum(error is not None for error in errors)
        return f"step {step}: {lost} of {len(errors)} completions got no reward; {cause(errors, example)}", news
