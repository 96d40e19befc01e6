"""Whether the engine holds the trainer's weights: log-probabilities of a few tokens that it sampled just now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gspo import types
from gspo.learner import layout
from gspo.objective.routing import changed
from gspo.ports import Policy
from gspo.types import Prompt, Rollout

PROBES, PROMPT_TOKENS, PROBE_TOKENS = 4, 8, 16
# In a mixture a tie of two experts, which rounding decides, moves all that follows: other prompts have other ties.
ROUNDS = 3
# Mean |log mu - log pi| of the probes: always accepted, and never.
FINE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 5e-3}
WRONG = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.03}
WORSE = 5.0  # in between: times the largest gap so far, since it grows as a model sharpens
OTHER = 0.2  # share of the engine's experts that the trainer would not choose


class Seen(NamedTuple):
    """What a check found: the mean gap of the log-probabilities, of how many tokens, and the share of other experts."""

    gap: float
    tokens: int
    other: float


class Check:
    """Compares probes. dtype: that of the matrix products. gap: the largest that was accepted so far."""

    def __init__(self, dtype: torch.dtype, vocabulary: int) -> None:
        self.dtype, self.vocabulary, self.gap = dtype, vocabulary, 0.0

    @property
    def limit(self) -> float:
        """The largest gap that is accepted now."""
        wrong = WRONG[self.dtype]
        return min(wrong, max(FINE[self.dtype], WORSE * self.gap)) if self.gap else wrong

    def prompts(self, version: int, round: int) -> list[Prompt]:
        """Random tokens, others in each round."""
        g = torch.Generator().manual_seed(version * ROUNDS + round)
        ids = torch.randint(self.vocabulary, (PROBES, PROMPT_TOKENS), generator=g).tolist()
        return [Prompt(f"probe {i}", "", tuple(row)) for i, row in enumerate(ids)]

    @torch.no_grad()
    def compare(self, policy: Policy, probes: Sequence[Rollout]) -> Seen:
        """The policy follows the engine's experts, where they are known, so that ties decide nothing."""
        known = [
            types.Completion(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 0.0, routes=r.routes) for r in probes
        ]
        batch = layout.build(known, policy.shares_prompts)
        routed = batch.routes is not None and policy.sparse
        out = policy.forward(batch, routing=routed, replay=routed)
        other = 0.0
        if out.routing is not None and batch.routes is not None:
            other = float(changed(batch.routes, out.routing.own.cpu()).mean())
        return Seen(float((out.logp.cpu() - batch.logp_mu).abs().mean()), len(batch.logp_mu), other)

    def accepts(self, seen: Seen) -> bool:
        """Whether the engine may hold the policy's weights."""
        good = seen.gap <= self.limit and seen.other <= OTHER
        if good:
            self.gap = max(seen.gap, self.gap)
        return good
