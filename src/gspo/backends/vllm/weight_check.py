"""Checks that an engine holds the trainer's weights, with the log-probabilities of a few newly sampled tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from gspo.config.rollout import SamplerConfig
from gspo.interfaces import Weights
from gspo.objective.routing import changed
from gspo.types import Completion, Prompt, Reading, Rollout

PROBES, PROMPT_TOKENS, PROBE_TOKENS = 4, 8, 16
# In a mixture of experts, rounding may break a tie and change all later tokens. Other prompts have other ties.
ROUNDS = 3
LIMITS = {
    "float32": (1e-4, 1e-3), "float16": (5e-3, 0.03), "bfloat16": (0.03, 0.15), "int8": (0.08, 0.4), "fp8": (0.16, 0.8),
}  # fmt: skip
"""Mean |log mu - log pi| of the probes, in nats, by the lowest precision in an engine: always accepted up to the first,
never above the second. Of int8 and fp8 not measured on a GPU: the second is 5 and 3.4 times the largest gap of SmolLM2-135M
with rounded matrices (.078, .238; lab/log.md, 2026-11-30). In int4 it is 2.3, too near to the 3.7 of weights that are all 0.
"""
WORSE = 5.0  # in between: the limit as a multiple of the largest gap so far, which grows as a model sharpens
OTHER = 0.2  # largest accepted share of the engine's experts that the trainer would not choose


class Gap(NamedTuple):
    """Mean gap of the log-probabilities, number of tokens compared, and the share of experts that differ."""

    mean: float
    tokens: int
    other: float


class Check:
    """The acceptance test for one engine's probes. `gap` is the largest accepted one so far.

    Args:
        precision: The lowest in the engine, a key of LIMITS.
        wrong: A gap that is never accepted, instead of the second limit.
    """

    def __init__(self, precision: str, vocabulary: int, wrong: float | None = None) -> None:
        self.vocabulary, self.gap = vocabulary, 0.0
        fine, known = LIMITS[precision]
        self.wrong = known if wrong is None else wrong
        self.fine = min(fine, self.wrong)

    @property
    def limit(self) -> float:
        """The largest mean gap accepted now."""
        return min(self.wrong, max(self.fine, WORSE * self.gap)) if self.gap else self.wrong

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


def precision_of(given: SamplerConfig, dtype: torch.dtype) -> str:
    """The lowest precision in an engine, of weights, keys and values or matrix products (`dtype`): a key of LIMITS."""
    rounded = given.quantization + given.kv_cache_dtype
    return next((kind for kind in ("fp8", "int8") if kind in rounded), str(dtype).removeprefix("torch."))


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
