"""Batches in which no completion got a reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gspo.data.bounds import NO_OPINION
from gspo.ports import RewardsFailed
from gspo.types import Group, Rollout

FAILING = 3
"""Steps in a row without any reward that end a run whose rewards worked before, or that had no opinion from the start."""


def failed(rollout: Rollout) -> bool:
    """Whether a completion counts as wrong for want of a value: it has no reward, or none of the first function."""
    return rollout.reward is None or first(rollout) is None


def first(rollout: Rollout) -> float | None:
    """What the first reward function gave, before its weight."""
    return next(iter(rollout.reward_parts.values()), rollout.reward)


def commonest(rollouts: Sequence[Rollout]) -> str:
    """The error that most of the rollouts have, of those without a reward; empty where none has."""
    errors = Counter(rollout.error or NO_OPINION for rollout in rollouts if rollout.reward is None)
    return errors.most_common(1)[0][0] if errors else ""


def all_failed(groups: Sequence[Group]) -> str:
    """Why no completion of a batch got a reward, or an empty string where one did."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if not rollouts or any(rollout.reward is not None for rollout in rollouts):
        return ""
    why = commonest(rollouts)
    none = f"none of {len(rollouts)} completions got a reward, "
    if why == NO_OPINION:
        return f"{none}as {why}: return a number, 0 for a bad completion"
    wait = ", or raise reward.timeout" if "(reward.timeout)" in why else ""
    return f"{none}most of them for this reason: {why}; since all failed, mend what gives the reward{wait}"


class Failures:
    """Counts the steps without any reward, and says when they must end the run: the first one at once where rewards raise
    or return what is no reward, else FAILING of them in a row. A run that is resumed begins anew.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.worked = False

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
