"""How a reward function is called, what follows from a failed call, and the run's warnings about it.

A call for many completions that fails is repeated at the next level (graders.py:BATCH ...), down to a call for each unit:
one completion, or all of a prompt. Only a unit whose own call fails gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gspo.rewards.channels import Channel
from gspo.rewards.graders import BATCH, SINGLY, CallFailed, Result, RewardInput

MAX_LOST = 8  # calls of one function that may hang or crash per scoring; completions after that are not scored


class CallMode:
    """The level at which a function is called from now on, and warnings about it that are not yet given. A batched call that
    timed out is not tried again in later steps: it would time out again, and a paid judge would be billed twice.
    """

    def __init__(self) -> None:
        self.level = BATCH
        self.news: list[str] = []
        self._announced: set[bool] = set()

    def failed(self, count: int, unit: str, error: CallFailed) -> None:
        """Warns, once of each kind of failure, of a call for `count` completions. Each unit then gets its own."""
        if error.late in self._announced:
            return
        self._announced.add(error.late)
        what = f"failed ({error}), so each {unit} got a call of its own. Mend the function"
        if error.late:
            what = (
                f"{error}, so from now on each {unit} gets a call of its own. Raise reward.timeout to wait for all at once"
            )
        self.news.append(f"a call for {count} completions {what}, or return NaN for a completion that it cannot score")


def score_rows(
    channel: Channel, name: str, rows: list[RewardInput], timeout: float, mode: CallMode, note_results: Callable[[int], None]
) -> list[Result]:
    """Results of the function `name`, one per row. timeout: Seconds per call. `note_results` gets the number
    of rows that have a result since its last call.
    """
    signature = channel.signature(name)
    unit_name = "prompt" if signature.by_group else "completion"
    levels = [level for level in signature.levels if level >= mode.level]
    results: list[Result] = []
    late, lost = False, 0

    def add(new: Sequence[Result]) -> None:
        results.extend(new)
        note_results(len(new))

    while rest := rows[len(results) :]:
        level = SINGLY if _unit(rest, signature.by_group) == len(rest) else levels[0]
        try:
            channel.send(name, rest, level)
            while len(results) < len(rows):
                add(channel.receive(timeout))
        except CallFailed as error:
            if level < SINGLY:
                mode.failed(len(rest), unit_name, error)
                late |= error.late
                levels.pop(0)
                if late:
                    mode.level = levels[0]
                continue
            lost += 1
            add([(None, str(error))] * _unit(rows[len(results) :], signature.by_group))
            if lost == MAX_LOST:
                skipped = f"not scored: {lost} calls before it hung or crashed: {error}"
                add([(None, skipped)] * (len(rows) - len(results)))
    return results


def _unit(rows: Sequence[RewardInput], by_group: bool) -> int:
    """Number of leading rows that one call takes if each unit gets its own."""
    return next((i for i, row in enumerate(rows) if row.group != rows[0].group), len(rows)) if by_group else 1
