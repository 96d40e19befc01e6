"""How a reward function is called after calls that failed, and what a run says of them."""

from __future__ import annotations

from collections.abc import Sequence

from gspo.rewards.graders import BATCH, Result

SKIPPED = "not scored: "
"""Begins the error of a completion that got no call of its own, as too many before it hung or crashed."""


class CallMode:
    """How a function is called from now on, and what is to be said of it.

    Calls for many completions that time out would do so in every step, and a judge be paid twice: they are not tried again.
    grouped: a call is for all completions to a prompt.
    """

    def __init__(self) -> None:
        self.level = BATCH
        self.grouped = False
        self._news: list[tuple[str, bool]] = []  # what failed, and whether by time
        self._announced: set[bool] = set()

    def failed(self, count: int, why: str, late: bool) -> None:
        """A call for `count` completions failed, and each gets one of its own."""
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
        """What is to be said of a scoring, once: a text for the first time-out, one for the first other failure. Where no
        completion fared better in a call of its own, none of them is to blame.
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
