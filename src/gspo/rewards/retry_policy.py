"""How a reward function is called, what follows from a failed call, and the run's warnings about it.

A call for many completions that fails is repeated at the next level (graders.py:BATCH ...), down to a call for each unit:
one completion, or all of a prompt. Only a unit whose own call fails gets an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gspo.rewards.channels import Channel
from gspo.rewards.graders import BATCH, SINGLY, CallFailed, Result, RewardInput

MAX_LOST = 8
"""Calls of one function that may fail as a whole (hang or crash) per scoring; completions after that are not scored."""
SKIPPED = "not scored: "
"""Prefix of the error of a completion that was not tried, since too many calls before it hung or crashed."""


class CallMode:
    """The level at which a function is called from now on, and pending warnings about it.

    A batched call that timed out is not retried in later steps: it would time out again, and a paid judge would be billed
    twice.
    """

    def __init__(self) -> None:
        self.level = BATCH
        self._news: list[tuple[str, bool]] = []  # failure, and whether it was a timeout
        self._announced: set[bool] = set()

    def failed(self, count: int, unit: str, error: CallFailed) -> None:
        """Records a failed call for `count` completions, after which each unit gets its own call."""
        if error.late in self._announced:
            return
        self._announced.add(error.late)
        if error.late:
            what = f"{error} and was given up. From now on each {unit} gets a call of its own"
        else:
            what = f"failed ({error}), so each {unit} got a call of its own"
        self._news.append((f"a call for {count} completions {what}", error.late))

    def news(self, results: Sequence[Result]) -> list[str]:
        """Warnings about a scoring, each given once: one for the first timeout, one for the first other failure. If every
        completion failed in its own call too, the function is to blame, not a single completion.
        """
        all_failed = all(error is not None for _, error in results)
        tried = sum(not (error or "").startswith(SKIPPED) for _, error in results)
        these = "All of these" if tried == len(results) else f"All {tried} completions that were tried"
        texts = []
        for what, late in self._news:
            if all_failed:
                wait = "Raise reward.timeout, or mend" if late else "Mend"
                remedy = f"{these} failed too. {wait} the function: the arguments that it takes, or what it needs to run"
            elif late:
                remedy = "Raise reward.timeout to wait for all at once, or make the function handle a single bad completion"
            else:
                remedy = "Make the function handle a single bad completion, by returning None for it"
            texts.append(f"{what}. {remedy}")
        self._news.clear()
        return texts


def score_rows(
    channel: Channel, name: str, rows: list[RewardInput], timeout: float, mode: CallMode, note_results: Callable[[int], None]
) -> list[Result]:
    """Results of the function `name`, one per row; only a row whose own call fails, hangs or crashes gets an error.

    Args:
        timeout: Seconds per call.
        mode: How the function is called; updated after timeouts.
        note_results: Called with the number of additional rows that have a result.
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
                skipped = f"{SKIPPED}{lost} calls before it hung or crashed: {error}"
                add([(None, skipped)] * (len(rows) - len(results)))
    return results


def _unit(rows: Sequence[RewardInput], by_group: bool) -> int:
    """Number of leading rows that one call takes if each unit gets its own."""
    if not by_group:
        return 1
    return next((i for i, row in enumerate(rows) if row.group != rows[0].group), len(rows))
