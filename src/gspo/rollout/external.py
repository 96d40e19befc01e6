"""Groups that an agent sampled and scored itself, and handed over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gspo.ports import Sampler
from gspo.rollout.metrics import staleness
from gspo.types import Group, Prompt, Rollout, Sampling

PROBES, PROBE_TOKENS = 8, 32


class HandedSource:
    """The groups that `give` took last. Attributes as in rollout.SynchronousSource; it has no prompts of its own, so it also
    stands in for their stream.
    """

    position = 0

    def __init__(self, sampler: Sampler, sampling: Sampling) -> None:
        self.sampler, self.sampling = sampler, sampling
        self.groups: Sequence[Group] = ()
        self.seconds: dict[str, float] = {}

    def give(self, groups: Sequence[Group]) -> Sequence[Group]:
        """Groups for the next step."""
        self.groups = groups
        return groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    @property
    def delay(self) -> int:
        """1 where some of the groups are of older weights than those of now."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        return int(bool(rollouts) and staleness(rollouts, self.sampler.version) > 0)

    @property
    def newest(self) -> list[Group]:
        """Completions of the weights of now, for what numerics do: the sampler's own probes, or a few sampled for it."""
        probes = getattr(self.sampler, "probes", None)
        if probes is None:
            first = [group.prompt for group in self.groups[:PROBES]]
            prompts = [Prompt(prompt.id, "", prompt.tokens[:PROBE_TOKENS]) for prompt in first]
            probes = self.sampler.generate(prompts, 1, dataclasses.replace(self.sampling, max_new_tokens=PROBE_TOKENS))
        return [Group(rollout.prompt, [rollout]) for rollout in probes]

    def take(self, k: int) -> list[Prompt]:
        """Raises RuntimeError: whoever trains on what is handed over asks for no prompts."""
        raise RuntimeError("there are no prompts to sample: groups are handed over")

    def drop(self) -> None:
        """Nothing waits here."""

    def state_dict(self) -> list[Any]:
        """Nothing waits here."""
        return []

    def load_state_dict(self, state: list[Any]) -> None:
        """Nothing waits here."""


class Handed:
    """A scorer of what was scored already. It stands in for rewards/scorer.py's, which has prompts to check and workers."""

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Nothing is asked of the prompts."""

    def wait(self) -> None:
        """Nothing is waited for."""

    def score(self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None) -> list[Rollout]:
        """The rollouts as they are."""
        return rollouts

    def counts(self) -> dict[str, float]:
        """Nothing is counted."""
        return {}
