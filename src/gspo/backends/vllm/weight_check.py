"""Whether the engine holds the trainer's weights: log-probabilities of a few tokens that it sampled just now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gspo.interfaces import Weights
from gspo.objective.routing import changed
from gspo.types import Completion, Prompt, Reading, Rollout

PROBES, PROMPT_TOKENS, PROBE_TOKENS = 4, 8, 16
# In a mixture a tie of two experts, which rounding decides, moves all that follows: other prompts have other ties.
ROUNDS = 3
# Mean |log mu - log pi| of the probes: always accepted, and never.
FINE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 5e-3}
WRONG = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.03}
WORSE = 5.0  # in between: times the largest gap so far, since it grows as a model sharpens
OTHER = 0.2  # share of the engine's experts that the trainer would not choose


class Gap(NamedTuple):
    """What a check found: the mean gap of the log-probabilities, of how many tokens, and the share of other experts."""

    mean: float
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

    def accepts(self, gap: Gap) -> bool:
        """Whether the engine may hold the policy's weights."""
        good = gap.mean <= self.limit and gap.other <= OTHER
        if good:
            self.gap = max(gap.mean, self.gap)
        return good


def compare(weights: Weights, engines: Sequence[Sequence[Rollout]]) -> list[Gap]:
    """Between what each of several engines and these weights say of its probes, which are read in one pass."""
    probes = [probe for one in engines for probe in one]
    completions = [
        Completion(p.tokens, p.sampled, p.logp[p.sampled], p.logp[p.sampled], 0.0, routes=p.routes) for p in probes
    ]
    pairs = iter(list(zip(weights.read(completions) if completions else [], completions)))
    return [_gap([next(pairs) for _ in one]) for one in engines]


def _gap(pairs: Sequence[tuple[Reading, Completion]]) -> Gap:
    gaps = torch.cat([(reading.logp - one.logp_mu).abs() for reading, one in pairs])
    routes = [(one.routes, reading.routes) for reading, one in pairs]
    others = [changed(theirs, ours) for theirs, ours in routes if theirs is not None and ours is not None]
    return Gap(float(gaps.mean()), len(gaps), float(torch.cat(others).mean()) if others else 0.0)


def repeated(probes: Sequence[Rollout], known: Sequence[Rollout]) -> float:
    """Mean |log mu - log mu'| of the tokens that two engines sampled alike, to the same prompts with the same seeds;
    infinite where that are less than half of them: with the same weights only rounding tells them apart.
    """
    gaps, count = [], 0
    for one, other in zip(probes, known):
        a, b = one.tokens[one.sampled], other.tokens[other.sampled]
        both = min(len(a), len(b))
        alike = int((a[:both] == b[:both]).long().cumprod(0).sum())
        gaps.append((one.logp[one.sampled][:alike] - other.logp[other.sampled][:alike]).abs())
        count += len(b)
    gap = torch.cat(gaps)
    return float(gap.mean()) if 2 * len(gap) >= count else math.inf
