"""Failures of an endpoint: those of a single problem, and those which mean that the endpoint does not work at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gspo.eval.replies import Key
from gspo.rewards.http_client import Failed, Unreadable

REFUSED = (400, 403, 413, 422)
"""HTTP statuses that refuse one request (too long, or filtered) while the next may well succeed."""
TRIES = 4
"""Failures after which a problem without a reply is not requested again in this run."""
IN_A_ROW = 8
"""Number of problems that fail in a row, with no reply in between, after which sampling stops."""
SHOWN = 5  # problems that a message lists


class Faults:
    """The failures of an endpoint in one run, by kind.

    A refusal concerns only its problem, and so may a timeout or an error within the server: the other problems go on. A
    failure that every request would meet, such as a lost connection or a wrong key, stops the sampling.

    there: problems that have replies from an earlier run. each: whether a refused problem is requested for each of its
    replies, because they may differ.
    """

    def __init__(self, there: Iterable[str], each: bool) -> None:
        self.refused: dict[str, str] = {}  # why each problem was refused
        self.refusals: list[Key] = []
        self.failed: dict[str, str] = {}  # why a problem failed in another way
        self.stopped: str | None = None  # why sampling has stopped
        self._in_a_row: set[str] = set()
        self._replied, self._each = set(there), each
        self._counts = Counter[str]()

    def replied(self, key: Key) -> None:
        """Records that a reply has arrived."""
        self._replied.add(key[0])
        self._in_a_row.clear()

    def add(self, key: Key, error: Exception) -> None:
        """Records a failed request. Raises `error` if it is not the failure of an endpoint."""
        if not isinstance(error, (Failed, Unreadable)):
            raise error
        problem, why = key[0], str(error)
        if isinstance(error, Failed) and error.status in REFUSED:
            self.refused.setdefault(problem, why)
            self.refusals.append(key)
        elif isinstance(error, Failed) and not error.late and (error.status or 0) < 500:
            self.stopped = self.stopped or why
            return
        else:
            self.failed.setdefault(problem, why)
            self._counts[problem] += 1
        self._in_a_row.add(problem)  # many in a row are not the problems' fault: no credit left, or a wrong key
        if len(self._in_a_row) >= IN_A_ROW:
            self.stopped = self.stopped or f"{why}, at {IN_A_ROW} problems one after the other"

    def may_request(self, problem: str) -> bool:
        """Whether to request more replies to a problem."""
        if problem in self._replied:
            return True
        return (self._each or problem not in self.refused) and self._counts[problem] < TRIES

    def describe(self) -> str:
        """The failures by problem, and the remedies."""
        texts = [self.stopped] if self.stopped else []
        if self.refused:
            remedy = "fix that, or count them as wrong with --refused-as-wrong, which needs replies to other problems"
            texts.append(f"it refused {named(self.refused)}: {remedy}")
        if self.failed:
            remedy = "raise --sampler.timeout or lower --sampler.batch_size if it is slow, or leave them out of --data"
            texts.append(f"it failed at {named(self.failed)}: {remedy}")
        return "; ".join(texts)


def named(problems: dict[str, str] | Iterable[str]) -> str:
    """Names some problems by their ids, with the reason of the first if there are reasons."""
    ids = sorted(problems)  # requests end in a random order
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    why = f" ({problems[ids[0]]})" if isinstance(problems, dict) else ""
    return f"problem{'s' * (len(ids) > 1)} {', '.join(ids[:SHOWN])}{more}{why}"
