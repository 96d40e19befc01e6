"""What an endpoint fails at: which problems it refuses, which of its faults say that it is not there at all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gspo.eval.replies import Key
from gspo.rewards.http_client import Failed, Unreadable

REFUSED = (400, 403, 413, 422)
"""Statuses with which a server refuses one request and may well take the next: it is too long, or filtered."""
TRIES = 4
"""Faults after which a problem without a reply is asked no more, in this run."""
IN_A_ROW = 8
"""Problems that fail one after the other, without any reply in between, before nothing more is asked for."""
SHOWN = 5  # problems that a message names


class Faults:
    """The faults of an endpoint in one run, by kind. refused: why each problem was refused; refusals: the replies. stopped:
    why nothing more is asked for, None where the endpoint works.

    A refusal is its problem's own, and so may be a reply that takes too long or an error within the server: the other
    problems go on. What would meet each of them, such as a lost connection or a wrong key, ends the sampling.

    there: problems with replies from before. each: refused problems are asked for each of their replies, which may differ.
    """

    def __init__(self, there: Iterable[str] = (), each: bool = False) -> None:
        self.refused: dict[str, str] = {}
        self.refusals: list[Key] = []
        self.late: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.stopped: str | None = None
        self._row: dict[str, int] = {}
        self._replied, self._each = set(there), each
        self._counts: dict[str, int] = {}

    def replied(self, key: Key) -> None:
        """A reply has come."""
        self._replied.add(key[0])
        self._row.clear()

    def add(self, key: Key, error: BaseException) -> None:
        """The request for a reply has failed. Raises the error where it is none of an endpoint."""
        if not isinstance(error, (Failed, Unreadable)):
            raise error
        problem, why = key[0], str(error)
        status, late = getattr(error, "status", None), getattr(error, "late", False)
        if status in REFUSED:
            self.refused.setdefault(problem, why)
            self.refusals.append(key)
            self._failed(problem, why)  # of one after the other no problem is the cause: no money, or a wrong key
            return
        if not late and not isinstance(error, Unreadable) and not (status and status >= 500):
            self.stopped = self.stopped or why
            return
        (self.late if late else self.others).setdefault(problem, why)
        self._counts[problem] = self._counts.get(problem, 0) + 1
        self._failed(problem, why)

    def _failed(self, problem: str, why: str) -> None:
        self._row[problem] = 1
        if len(self._row) >= IN_A_ROW:
            self.stopped = self.stopped or f"{why}, at {IN_A_ROW} problems one after the other"

    def asks(self, problem: str) -> bool:
        """Whether more replies to a problem are to be asked for."""
        if problem in self._replied:
            return True
        return (self._each or problem not in self.refused) and self._counts.get(problem, 0) < TRIES

    def words(self) -> str:
        """What failed, by problem, and what to do about it."""
        said = [self.stopped] if self.stopped else []
        if self.refused:
            remedy = "mend that, or count them as wrong with --refused-as-wrong, which needs replies to other problems"
            said.append(f"it refused {named(self.refused)}: {remedy}")
        if self.late:
            said.append(f"too slow at {named(self.late)}: raise --sampler.timeout, or lower --sampler.batch_size")
        if self.others:
            said.append(f"it failed at {named(self.others)}: see what it says of them, or leave them out of --data")
        return "; ".join(said)


def named(problems: dict[str, str] | Iterable[str]) -> str:
    """Some problems by their ids, with the first one's reason where there are reasons. In the order of their ids: which
    request ends first is chance.
    """
    ids = sorted(problems, key=lambda id: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", id)])
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    why = f" ({problems[ids[0]]})" if isinstance(problems, dict) else ""
    return f"problem{'s' * (len(ids) > 1)} {', '.join(ids[:SHOWN])}{more}{why}"
