"""The queries of one source: their order, the results seen for each, and which of them rest.

With rollout/stages.py: the one clock is the number of completed steps, and the settings of a batch follow from the step
that trains on it (config/stages.py:rollout_at), so no stage state is in a checkpoint. An epoch visits a whole pool, in an
order given by seed and epoch, and skips resting queries: the next prompt follows from a cursor and the resting queries. A
refresh is a pure function of the completed steps and the counts per query since it was last judged, so old weights have no
influence. It runs once, at the first batch that starts after its step. Checkpoints hold cursors, counts, resting queries,
and the rows that a function returned: it is not called again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gspo.config.stages import RefreshConfig
from gspo.data.prompts import PromptStream, digest, identity
from gspo.types import Prompt


@dataclass
class Seen:
    """Results of a query since it was last judged: groups, completions scored, completions correct."""

    groups: int = 0
    scored: int = 0
    correct: int = 0

    @property
    def accuracy(self) -> float:
        """Share of the scored completions that are correct."""
        return self.correct / self.scored


@dataclass(frozen=True)
class Change:
    """Effect of a refresh on a pool, in queries. `spared`: those that only `keep` saved from being dropped."""

    dropped: int = 0
    returned: int = 0
    spared: int = 0


@dataclass
class Pool:
    """The prompts of one source. A query is identified by the number of its first prompt. `cursor` counts the positions
    visited, over all epochs; `rows` are those that refresh.source returned; `resting` has each dropped query with its step;
    `known` are the queries that were ever sampled.
    """

    name: str
    prompts: Sequence[Prompt]
    seed: int
    rows: Sequence[dict[str, Any]] = ()
    seen: dict[int, Seen] = field(default_factory=dict)
    resting: dict[int, int] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    cursor: int = 0

    def __post_init__(self) -> None:
        self.stream = PromptStream(range(len(self.prompts)), self.seed)
        self.number = {prompt.id: number for number, prompt in enumerate(self.prompts)}

    @cached_property
    def data(self) -> str:
        """The fingerprint of the prompts, which takes seconds for a million."""
        return digest(self.prompts)

    @cached_property
    def query(self) -> list[int]:
        """The query of each prompt; equal rows share one."""
        first: dict[Any, int] = {}
        return [first.setdefault(identity(prompt, True), number) for number, prompt in enumerate(self.prompts)]

    @cached_property
    def queries(self) -> list[int]:
        """All queries."""
        return sorted(set(self.query))

    @property
    def active(self) -> list[int]:
        """The queries that are not resting."""
        return [query for query in self.queries if query not in self.resting]

    def take(self, k: int) -> list[Prompt]:
        """The next k prompts; the end of an epoch is followed by the next."""
        taken: list[Prompt] = []
        self.stream.position = self.cursor
        while len(taken) < k:
            (number,) = self.stream.take(1)
            if not self.resting or self.query[number] not in self.resting:
                taken.append(self.prompts[number])
        self.cursor = self.stream.position
        return taken

    def observe(self, prompt: Prompt, scored: int, correct: int) -> None:
        """Counts a group of a prompt of this pool: its scored completions, and how many of those are correct."""
        query = self.query[self.number[prompt.id]]
        self.known.add(query)
        if scored:
            seen = self.seen.setdefault(query, Seen())
            seen.groups, seen.scored, seen.correct = seen.groups + 1, seen.scored + scored, seen.correct + correct

    def refresh(self, done: int, rules: RefreshConfig, keep: int) -> Change:
        """After `done` steps returns queries that have rested long enough, and drops those whose accuracy is outside the
        limits, farthest first. At least `keep` queries remain active.
        """
        back = [query for query, since in self.resting.items() if rules.return_after and done - since >= rules.return_after]
        for query in back:
            del self.resting[query]
            self.seen.pop(query, None)  # groups that were in flight when it was dropped
        active = self.active
        judged = [query for query in active if query in self.seen and self.seen[query].groups >= rules.min_seen]
        accuracy = {query: self.seen.pop(query).accuracy for query in judged}
        beyond = {query: max(x - rules.drop_above, rules.drop_below - x) for query, x in accuracy.items()}
        wrong = sorted((query for query in judged if beyond[query] > 0), key=lambda query: (-beyond[query], query))
        dropped = wrong[: max(0, len(active) - keep)]
        self.resting |= dict.fromkeys(dropped, done)
        return Change(len(dropped), len(back), len(wrong) - len(dropped))

    def forget(self, good: Mapping[str, Any] | None) -> Change:
        """Counts and resting queries as in this earlier state of the pool; None: as at its beginning."""
        before = self.resting
        self.seen = {query: Seen(*counts) for query, counts in good["seen"].items()} if good else {}
        self.resting = dict(good["resting"]) if good else {}
        return Change(len(self.resting.keys() - before.keys()), len(before.keys() - self.resting.keys()), 0)

    def counts(self) -> dict[str, float]:
        """The numbers of active queries, of resting ones, and of active ones that were never sampled."""
        active = self.active
        unseen = sum(query not in self.known for query in active)
        return {"queries/active": len(active), "queries/resting": len(self.resting), "queries/unseen": unseen}

    def state_dict(self) -> dict[str, Any]:
        """All state that determines the next prompt and the next refresh, in plain types."""
        return {
            "name": self.name,
            "data": self.data,
            "rows": json.dumps(self.rows),
            "cursor": self.cursor,
            "seen": {query: [seen.groups, seen.scored, seen.correct] for query, seen in self.seen.items()},
            "resting": dict(self.resting),
            "known": sorted(self.known),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`. Raises ValueError if the prompts differ."""
        if state["data"] != self.data:
            raise ValueError(
                f"the prompts of {self.name} are not those that this run has been trained on (another file, order or number "
                "of rows): put them back, or start another run from the checkpoint's model"
            )
        self.cursor = state["cursor"]
        self.known = set(state["known"])
        self.forget(state)
