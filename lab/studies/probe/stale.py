"""A batch of groups that is sampled once and then grows old, and what can be read of it at any age."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gspo.config.policy import ResolvedAlgorithm
from gspo.learner.agreement import before, other_experts, paired
from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches
from gspo.learner.scoring import read
from gspo.objective.losses import level_ratio
from gspo.objective.routing import changed
from gspo.rollout.credit import trained_on
from gspo.types import Completion, Group, Reading
from probe.candidates import Candidate

PLAIN = "none"  # no Routing Replay


@dataclass(frozen=True)
class Reader:
    """Who reads. masked: completions that were cut off are left out."""

    policy: Policy
    micro_batches: MicroBatches
    masked: bool

    def credited(self, groups: Sequence[Group], algorithm: ResolvedAlgorithm) -> list[list[Completion]]:
        """The completions of each group with an algorithm's advantages."""
        return trained_on(groups, algorithm, self.masked)[1]

    def read(self, completions: Sequence[Completion], replay: bool = False, tokens: int = 0) -> list[Reading]:
        """What the policy says of them now. tokens: of a micro-batch; 0: as the run has it."""
        parts = MicroBatches(tokens) if tokens else self.micro_batches
        return read(self.policy, completions, parts, routing=self.policy.sparse, replay=replay)


class Stale:
    """The groups of which an algorithm keeps at least two completions each, as they were sampled.

    rows: their completions by group; number: which of the groups that were given. owner [S]: the row of each completion. y:
    the ragged view of all. routes: experts to replay, by "R2" and "R3". old: log pi_old [N] by likelihoods and replay.
    again: log pi at age 0 by replay, read once more in smaller micro-batches: what numerics alone change.
    """

    def __init__(self, reader: Reader, groups: Sequence[Group], algorithm: ResolvedAlgorithm) -> None:
        """Reads them at age 0. Raises ValueError where nothing is left to read."""
        self.reader, self.groups = reader, groups
        every = reader.credited(groups, algorithm)
        self.number = [number for number, row in enumerate(every) if row]
        self.rows = [row for row in every if row]
        self.completions = [completion for row in self.rows for completion in row]
        if not self.completions:
            raise ValueError("no group has two scored completions: there is nothing to measure")
        self.owner = [number for number, row in enumerate(self.rows) for _ in row]
        first = reader.read(self.completions)
        logp, self.mu, self.y = paired(self.completions, first)
        self.routes: dict[str, list[Any]] = {}
        if reader.policy.sparse and all(reading.routes is not None for reading in first):
            self.routes["R2"] = [reading.routes for reading in first]
            if all(completion.routes is not None for completion in self.completions):
                self.routes["R3"] = [completion.routes for completion in self.completions]
        longest = max(len(completion.tokens) for completion in self.completions)
        total = sum(len(completion.tokens) for completion in self.completions)
        smaller = max(longest, min(reader.micro_batches.max_tokens // 2, total // 3))
        self.old = {("recompute", PLAIN): logp, ("sampler", PLAIN): self.mu}
        self.again = {PLAIN: self.logp(PLAIN, smaller)}
        for kind in self.routes:
            self.old |= {("recompute", kind): self.logp(kind), ("sampler", kind): self.mu}
            self.again[kind] = self.logp(kind, smaller)

    def replayed(self, kind: str, completions: Sequence[Completion] | None = None) -> list[Completion]:
        """The completions with the experts that are replayed."""
        given = self.completions if completions is None else completions
        routes = self.routes.get(kind, [None] * len(given))
        return [dataclasses.replace(completion, routes=each) for completion, each in zip(given, routes)]

    def logp(self, kind: str, tokens: int = 0) -> Tensor:
        """log pi [N] as the policy is now. kind: whose experts it takes."""
        completions = self.completions if kind == PLAIN else self.replayed(kind)
        return paired(completions, self.reader.read(completions, kind != PLAIN, tokens))[0]

    def view(self, candidate: Candidate) -> list[list[Completion]]:
        """The completions of each row with a candidate's advantages, likelihoods and experts."""
        every = self.reader.credited(self.groups, candidate.algorithm)
        flat = [completion for number in self.number for completion in every[number]]
        old = self.old[candidate.likelihoods, candidate.replay].split(self.y.length.tolist())
        with_routes = self.replayed(candidate.replay, flat) if candidate.replay != PLAIN else flat
        made = [dataclasses.replace(completion, logp_old=each) for completion, each in zip(with_routes, old)]
        return [[c for c, owner in zip(made, self.owner) if owner == row] for row in range(len(self.rows))]

    def signs(self) -> Tensor:
        """The advantage of each token [N], for its sign."""
        A = [torch.as_tensor(c.advantage, dtype=torch.float32).expand(len(c.logp_mu)) for c in self.completions]
        return torch.cat(A)

    def ratios(self, candidate: Candidate, logp: Tensor) -> Tensor:
        """The ratio that a candidate reads, as its level has it."""
        return level_ratio(candidate.row.level, logp, self.old[candidate.likelihoods, candidate.replay], self.y)

    def spread(self, candidate: Candidate, ratios: Tensor) -> Tensor:
        """Ratios at each token [N]."""
        return (self.y.turns() if candidate.row.level == "turn" else self.y).spread(ratios)

    def volatility(self, now: Sequence[Reading]) -> float | None:
        """Share of the experts of age 0 that are not chosen any more; None where there are none."""
        if "R2" not in self.routes:
            return None
        shares = [
            changed(old, reading.routes)[before(completion)].flatten()
            for completion, old, reading in zip(self.completions, self.routes["R2"], now)
            if reading.routes is not None
        ]
        return float(torch.cat(shares).mean())

    def agreement(self, now: Sequence[Reading]) -> float | None:
        """Share of the sampler's experts that the policy chooses too; None where they are not known."""
        others = other_experts(self.completions, now)
        return None if others is None else 1 - others.differ / others.choices
