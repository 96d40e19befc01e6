"""Synchronous sampling: each batch is sampled and scored on demand with the current weights."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.config.stages import rollout_at
from gspo.interfaces import Report, Sampler, SamplerError, Scorer
from gspo.rollout.metrics import staleness
from gspo.rollout.overlong import penalised
from gspo.rollout.stages import Curriculum, sampling_at
from gspo.types import Group, Metrics, Prompt, Rollout, Sampling


def sample_groups(
    sampler: Sampler, scorer: Scorer, prompts: Sequence[Prompt], n: int, sampling: Sampling, report: Report
) -> tuple[list[Group], dict[str, float]]:
    """Samples and scores n rollouts per prompt. Returns the groups, and metrics: seconds of both, the scorer's counters."""
    total = len(prompts) * n
    begin = time.perf_counter()
    rollouts = sampler.generate(prompts, n, sampling, lambda done: report("sampling", done, total))
    sampled = time.perf_counter()
    scored = scorer.score(rollouts, lambda done: report("scoring", done, total), [i // n for i in range(total)])
    groups = [Group(prompt, scored[i * n : (i + 1) * n]) for i, prompt in enumerate(prompts)]
    return groups, {"time/sample": sampled - begin, "time/score": time.perf_counter() - sampled} | scorer.counts()


@dataclass
class SynchronousSource:
    """Groups, batch after batch, sampled on demand with the sampler's weights. A RolloutSource.

    A batch has num_prompts groups of num_generations rollouts. `done` counts the batches handed out, one per step.
    """

    prompts: Curriculum
    sampler: Sampler
    scorer: Scorer
    config: RolloutConfig
    sampling: Sampling
    report: Report = lambda phase, done, total: None
    batch: list[Group] = field(default_factory=list)
    unused: Sequence[str | None] = ()
    done: int = 0
    metrics: Metrics = field(default_factory=dict)

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.prompts.begin(self.done)
            place = self.prompts.place
            try:
                self.batch = self._batch()
            except SamplerError:
                self.prompts.place = place  # a resumed run samples them again
                raise
            self.done += 1
            self.metrics |= self.prompts.metrics(self.done)
            yield from self.batch

    def _batch(self) -> list[Group]:
        """Samples the next batch and sets the metrics."""
        # Each batch has its own seed, also after a resume: the number of the batch comes from the position.
        groups, self.metrics = self._sample(self.config.num_prompts, self.prompts.position // self.config.num_prompts)
        self.prompts.observe(groups)
        return groups

    def _sample(self, count: int, number: int, before: int = 0) -> tuple[list[Group], dict[str, float]]:
        """Groups of the next `count` prompts. number: for their seed. before: groups already sampled for the batch."""
        assert isinstance(self.sampling.seed, int)
        rollout = rollout_at(self.config, self.prompts.stages, self.done + 1)
        seed = self.sampling.seed * 1_000_003 + number
        sampling, n = dataclasses.replace(sampling_at(self.sampling, rollout), seed=seed), rollout.num_generations

        def report(phase: str, done: int, total: int) -> None:
            self.report(phase, before * n + done, before * n + total)

        prompts = self.prompts.take(count, self.done + 1)
        groups, metrics = sample_groups(self.sampler, self.scorer, prompts, n, sampling, report)
        return [Group(group.prompt, penalised(group.rollouts, rollout)) for group in groups], metrics

    @property
    def stale(self) -> bool:
        """Whether the sampler lags: tokens of the last batch were sampled by older weights than the current ones."""
        rollouts = [rollout for group in self.batch for rollout in group.rollouts]
        return staleness(rollouts, self.sampler.version) > 0

    def fresh(self) -> list[Rollout]:
        """The sampler's completions of the current weights."""
        return self.sampler.probes

    def drop(self, good: Mapping[str, Any]) -> None:
        """Nothing waits."""
        self.prompts.forget(good["prompts"])

    def state_dict(self) -> dict[str, Any]:
        """Position among the prompts, in plain types."""
        return {"done": self.done, "prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]
