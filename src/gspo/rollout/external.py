"""Groups that an agent sampled and scored itself, and handed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gspo.interfaces import Sampler
from gspo.rollout.metrics import staleness
from gspo.types import Group, Prompt, Rollout, Sampling

PROBES, PROBE_TOKENS = 8, 32


class ExternalSource:
    """The groups that `give` took last, as a RolloutSource. It asks for no prompts."""

    unused: Sequence[str | None] = ()

    def __init__(self, sampler: Sampler, sampling: Sampling) -> None:
        self.sampler, self.sampling = sampler, sampling
        self.groups: Sequence[Group] = ()
        self.metrics: dict[str, float] = {}

    def give(self, groups: Sequence[Group]) -> Sequence[Group]:
        """Groups for the next step."""
        self.groups = groups
        return groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    @property
    def stale(self) -> bool:
        """Whether some of the groups are of older weights than those of now."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        return bool(rollouts) and staleness(rollouts, self.sampler.version) > 0

    def fresh(self) -> list[Rollout]:
        """Those by which the sampler proved the present weights, or a few that are sampled for it."""
        if self.sampler.probes:
            return self.sampler.probes
        first = [group.prompt for group in self.groups[:PROBES]]
        prompts = [Prompt(prompt.id, "", prompt.tokens[:PROBE_TOKENS]) for prompt in first]
        return self.sampler.generate(prompts, 1, dataclasses.replace(self.sampling, max_new_tokens=PROBE_TOKENS))

    def drop(self) -> None:
        """Nothing waits here."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing waits here."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing waits here."""


class AlreadyScored:
    """A scorer of what was scored already. It stands in for rewards/scorer.py's, which has prompts to check and workers."""

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Nothing is asked of the prompts."""

    def wait(self) -> None:
        """Nothing is waited for."""

    def score(self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None) -> list[Rollout]:
        """The rollouts, with 0 for what others of them counted, so that means are over all."""
        names = dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts)
        return [
            rollout
            if rollout.reward is None
            else dataclasses.replace(rollout, reward_parts={name: rollout.reward_parts.get(name, 0.0) for name in names})
            for rollout in rollouts
        ]

    def counts(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}

    def at(self, step: int, steps: int) -> None:
        """Nobody asks for it."""
