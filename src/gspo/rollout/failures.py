"""Completions without a reward: their number, the most common reason, and when they end a run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gspo.data.reward_bounds import NO_OPINION
from gspo.interfaces import RewardsFailed
from gspo.types import Group, Rollout

FAILING = 3
"""Number of consecutive steps without any reward after which a run ends, if rewards worked before or only returned None."""
REMIND_AFTER = 20
"""Steps after which the most common error is reported again."""
NO_FIRST = "the first reward function did not score it"
_DETAIL = re.compile(r"""(?<!\w)(?:'[^']*(?:'|$)|"[^"]*(?:"|$))|\d[\d.,]*(?:e[-+]?\d+)?""")
"""The varying parts of an error message: numbers, and quoted parts of a completion, whose closing quote may be cut off."""


def failed(rollout: Rollout) -> bool:
    """Whether a completion counts as wrong because it has no reward, or no value from the first reward function."""
    return rollout.reward is None or first(rollout) is None


def first(rollout: Rollout) -> float | None:
    """The value of the first reward function, before its weight."""
    return next(iter(rollout.reward_parts.values()), rollout.reward)


def errors(groups: Sequence[Group]) -> list[str | None]:
    """Why each completion has no reward; None if it has one."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    return [None if rollout.reward is not None else rollout.error or NO_OPINION for rollout in rollouts]


def eval_errors(groups: Sequence[Group]) -> list[str | None]:
    """Why each unscored completion counts as wrong; None if the first function scored it."""
    unscored = [failed(rollout) for group in groups for rollout in group.rollouts]
    return [error or (NO_FIRST if none else None) for error, none in zip(errors(groups), unscored)]


def kind(error: str) -> str:
    """The error without its varying parts."""
    return _DETAIL.sub("#", error)


def commonest(errors: Sequence[str | None]) -> tuple[str, int]:
    """The first error of the most common kind, and the number of errors of that kind; "" and 0 if there is none."""
    there = [error for error in errors if error is not None]
    ((most, count),) = Counter(map(kind, there)).most_common(1) or [("", 0)]
    return next((error for error in there if kind(error) == most), ""), count


def cause(errors: Sequence[str | None], example: str = "") -> str:
    """The most common error (or `example` of its kind), its count and share, and a remedy, as the end of a sentence."""
    why, count = commonest(errors)
    if why == NO_OPINION:
        remedy = "return a number, 0 for a bad completion"
    else:
        remedy = "fix the reward function" + (", or raise reward.timeout" if "(reward.timeout)" in why else "")
    return f"the commonest reason, of {count} ({count / len(errors):.0%}): {example or why}; {remedy}"


def all_failed(groups: Sequence[Group]) -> str:
    """Why no completion of a batch got a reward; "" if one did."""
    found = errors(groups)
    if not found or None in found:
        return ""
    return f"none of {len(found)} completions got a reward; {cause(found)}"


class Failures:
    """Counts steps without any reward and decides when they end the run: at the first such step if rewards raise or return
    invalid values, otherwise after FAILING of them in a row. A resumed run counts from zero.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.worked = False
        self._reported: dict[str, tuple[int, str]] = {}  # per kind of error: step of the last report, and the example shown

    def check(self, groups: Sequence[Group], step: int) -> None:
        """Raises RewardsFailed if the run must end after this step."""
        if why := self.observe(groups):
            raise RewardsFailed(f"step {step}: {why}. Nothing was learned; rollouts.jsonl has the error of each completion")

    def observe(self, groups: Sequence[Group]) -> str:
        """Why the run must end after this step, or ""."""
        why = all_failed(groups)
        self.worked |= not why
        self.in_a_row = self.in_a_row + 1 if why else 0
        at_once = not self.worked and NO_OPINION not in why
        if not why or (self.in_a_row < FAILING and not at_once):
            return ""
        return why if self.in_a_row == 1 else f"in {self.in_a_row} steps in a row {why}"

    def report(self, errors: Sequence[str | None], step: int) -> tuple[str, bool]:
        """The message about a step's completions without a reward ("" if all have one), and whether it is news. While the
        most common error is of one kind, only the numbers in the message change.
        """
        why, _ = commonest(errors)
        if not why:
            return "", False
        last, example = self._reported.get(kind(why), (step - REMIND_AFTER, why))
        news = step - last >= REMIND_AFTER
        if news:
            self._reported[kind(why)] = step, example
        lost = sum(error is not None for error in errors)
        return f"step {step}: {lost} of {len(errors)} completions got no reward; {cause(errors, example)}", news
