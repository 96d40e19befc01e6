"""Checks that an engine holds the trainer's weights, with the log-probabilities of a few newly sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gspo.interfaces import Weights
from gspo.objective.routing import changed
from gspo.types import Completion, Prompt, Reading, Rollout

PROBES, PROMPT_TOKENS, PROBE_TOKENS = 4, 8, 16
# In a mixture of experts, rounding may break a tie and change all later tokens. Other prompts have other ties.
ROUNDS = 3
# Mean |log mu - log pi| of the probes: always accepted up to FINE, never above WRONG.
FINE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 5e-3}
WRONG = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.03}
WORSE = 5.0  # in between: the limit as a multiple of the largest gap so far, which grows as a model sharpens
OTHER = 0.2  # largest accepted share of the engine's experts that the trainer would not choose


class Gap(NamedTuple):
    """Mean gap of the log-probabilities, number of tokens compared, and the share of experts that differ."""

    mean: float
    tokens: int
    other: float


class Check:
    """The acceptance test for one engine's probes. `gap` is the largest accepted one so far."""

    def __init__(self, dtype: torch.dtype, vocabulary: int) -> None:
        self.dtype, self.vocabulary, self.gap = dtype, vocabulary, 0.0

    @property
    def limit(self) -> float:
        """The largest mean gap accepted now."""
        wrong = WRONG[self.dtype]
        return min(wrong, max(FINE[self.dtype], WORSE * self.gap)) if self.gap else wrong

    def prompts(self, version: int, round: int) -> list[Prompt]:
        """Prompts of random tokens, different in each round."""
        g = torch.Generator().manual_seed(version * ROUNDS + round)
        ids = torch.randint(self.vocabulary, (PROBES, PROMPT_TOKENS), generator=g).tolist()
        return [Prompt(f"probe {i}", "", tuple(row)) for i, row in enumerate(ids)]

    def accepts(self, gap: Gap) -> bool:
        """Whether the engine may hold the policy's weights. Records an accepted gap."""
        good = gap.mean <= self.limit and gap.other <= OTHER
        if good:
            self.gap = max(gap.mean, self.gap)
        return good


def compare(weights: Weights, engines: Sequence[Sequence[Rollout]]) -> list[Gap]:
    """The gap of each engine: its probes' log-probabilities against those of `weights`, which read all in one pass."""
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
    """Mean |log mu - log mu'| over the common prefix of two engines' completions, with equal prompts and seeds. Infinite if
    the prefixes hold less than half of the tokens: with equal weights, only rounding makes them differ.
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
