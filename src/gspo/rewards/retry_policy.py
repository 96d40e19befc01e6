"""How a reward function is called after failed calls, and the run's warnings about them."""

from __future__ import annotations

from collections.abc import Sequence

from gspo.rewards.graders import BATCH, Result

SKIPPED = "not scored: "
"""Prefix of the error of a completion that was not tried, since too many calls before it hung or crashed."""


class CallMode:
    """How a function is called from now on, and pending warnings about it.

    A batched call that timed out is not retried in later steps: it would time out again, and a paid judge would be billed
    twice.

    Attributes:
        grouped: Whether a call takes all completions of a prompt.
    """

    def __init__(self) -> None:
        self.level = BATCH
        self.grouped = False
        self._news: list[tuple[str, bool]] = []  # failure, and whether it was a timeout
        self._announced: set[bool] = set()

    def failed(self, count: int, why: str, late: bool) -> None:
        """Records a failed call for `count` completions, after which each gets its own call."""
        if late in self._announced:
            return
        self._announced.add(late)
        unit = "prompt" if self.grouped else "completion"
        if late:
            what = f"{why} and was given up. From now on each {unit} gets a call of its own"
        else:
            what = f"failed ({why}), so each {unit} got a call of its own"
        self._news.append((f"a call for {count} completions {what}", late))

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
