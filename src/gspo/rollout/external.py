"""Groups that an agent has sampled and scored itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gspo.interfaces import RolloutSource, Sampler, Scorer
from gspo.rollout.metrics import staleness
from gspo.types import Group, Prompt, Rollout, Sampling

PROBES, PROBE_TOKENS = 8, 32


class ExternalSource(RolloutSource):
    """The groups last passed to `give`, each rollout as `read` by a teacher. It takes no prompts."""

    unused: Sequence[str | None] = ()

    def __init__(
        self, sampler: Sampler, sampling: Sampling, read: Callable[[Sequence[Rollout]], Sequence[Rollout]] | None = None
    ) -> None:
        self.sampler, self.sampling, self.read = sampler, sampling, read
        self.groups: Sequence[Group] = ()
        self.metrics: dict[str, float] = {}

    def give(self, groups: Sequence[Group]) -> Sequence[Group]:
        """Sets the groups of the next step, and returns them. Raises TeacherFailed."""
        if self.read is not None:
            taught = iter(self.read([rollout for group in groups for rollout in group.rollouts]))
            groups = [Group(group.prompt, [next(taught) for _ in group.rollouts]) for group in groups]
        self.groups = groups
        return groups

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    @property
    def stale(self) -> bool:
        """Whether some tokens were sampled by older weights than the current ones."""
        rollouts = [rollout for group in self.groups for rollout in group.rollouts]
        return bool(rollouts) and staleness(rollouts, self.sampler.version) > 0

    def fresh(self) -> list[Rollout]:
        """The probes with which the sampler verified the current weights, or a few short completions sampled now."""
        if self.sampler.probes:
            return self.sampler.probes
        first = [group.prompt for group in self.groups[:PROBES]]
        prompts = [Prompt(prompt.id, "", prompt.tokens[:PROBE_TOKENS]) for prompt in first]
        return self.sampler.generate(prompts, 1, dataclasses.replace(self.sampling, max_new_tokens=PROBE_TOKENS))


class AlreadyScored(Scorer):
    """A scorer for rollouts that already have rewards; it stands in for the one in rewards/scorer.py."""

    needs: Mapping[str, str] = {}
    """Columns that the prompts need, with the setting that names each: none."""

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Accepts all prompts."""

    def wait(self) -> None:
        """Returns at once: there are no workers."""

    def score(self, rollouts: list[Rollout], *_: object) -> list[Rollout]:
        """The rollouts, with 0 for missing reward parts, so that each mean covers all scored rollouts."""
        names = dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts)
        return [
            rollout
            if rollout.reward is None
            else dataclasses.replace(rollout, reward_parts={name: rollout.reward_parts.get(name, 0.0) for name in names})
            for rollout in rollouts
        ]


class Unrewarded(AlreadyScored):
    """A scorer for completions that only a teacher judges: each has the reward 0."""

    def score(self, rollouts: list[Rollout], *_: object) -> list[Rollout]:
        """The rollouts, with reward 0."""
        return [dataclasses.replace(rollout, reward=0.0) for rollout in rollouts]
