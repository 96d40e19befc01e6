"""Batches of groups that teach: prompts are sampled until the rewards of enough groups differ (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from gspo.config.policy import AlgorithmConfig
from gspo.config.rollout import RolloutConfig
from gspo.config.stages import rollout_at
from gspo.interfaces import PromptSource, Report, Sampler, SamplerError, Scorer
from gspo.rollout.credit import has_signal, trained_on
from gspo.rollout.failures import errors
from gspo.rollout.metrics import sampled_metrics
from gspo.rollout.stages import sampling_at
from gspo.rollout.synchronous import added, sample_groups
from gspo.types import Group, Rollout, Sampling


class DynamicSamplingSource:
    """Groups, batch after batch, each sampled with the weights of the moment that it is asked for (rollout.refill > 0).

    A batch begins with num_prompts prompts. Further rounds follow, `refill` at most, while fewer groups than that teach:
    while fewer have an advantage that is not zero, as training sees it. As in ports.RolloutSource;
    metrics: also what the step tells of all completions that were sampled for it, and `refill/...`. done: batches handed
    out.
    """

    stale = False

    def __init__(
        self,
        prompts: PromptSource,
        sampler: Sampler,
        scorer: Scorer,
        config: RolloutConfig,
        algorithm: AlgorithmConfig,
        sampling: Sampling,
        report: Report = lambda phase, done, total: None,
    ):
        self.prompts, self.sampler, self.scorer = prompts, sampler, scorer
        self.config, self.algorithm = config, algorithm
        self.sampling, self.report = sampling, report
        self.done = 0
        self.metrics: dict[str, float] = {}
        self.unused: Sequence[str | None] = ()

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.prompts.begin(self.done)
            batch = self._batch()
            self.done += 1
            self.metrics |= self.prompts.metrics(self.done)
            yield from batch

    def _batch(self) -> list[Group]:
        place, size = self.prompts.place, self.config.num_prompts
        sampled: list[Group] = []
        teaching: list[bool] = []
        spent: dict[str, float] = {}
        rounds = 0
        try:
            while rounds <= self.config.refill and (count := prompts_to_ask(size, teaching)):
                groups, metrics = self._round(count, len(sampled))
                sampled += groups
                _, completions = trained_on(groups, self.algorithm, self.config.mask_truncated_completions)
                teaching += map(has_signal, completions)
                spent = added(spent, metrics)
                rounds += 1
        except SamplerError:
            self.prompts.place = place  # a resumed run asks for them again, from the first round on
            raise
        self.prompts.see(sampled)
        self.metrics = spent | sampled_metrics(sampled)
        self.metrics |= {
            "refill/queries": len(sampled),
            "refill/rounds": rounds - 1,
            "refill/signal": sum(teaching) / len(teaching),
            "refill/unused": max(0, sum(teaching) - size),
        }
        chosen = choose(size, teaching)
        self.unused = errors([group for i, group in enumerate(sampled) if i not in chosen])
        return [sampled[i] for i in chosen]

    def _round(self, count: int, before: int) -> tuple[list[Group], dict[str, float]]:
        """The groups of the next prompts. before: groups that the batch has already."""
        # Rounds differ in size, so it is the prompts handed out before it that give each a seed of its own.
        assert isinstance(self.sampling.seed, int)
        rollout = rollout_at(self.config, self.prompts.stages, self.done + 1)
        seed = self.sampling.seed * 1_000_003 + self.prompts.position
        sampling, n = dataclasses.replace(sampling_at(self.sampling, rollout), seed=seed), rollout.num_generations

        def report(phase: str, done: int, total: int) -> None:
            self.report(phase, before * n + done, before * n + total)

        prompts = self.prompts.take(count, self.done + 1)
        return sample_groups(self.sampler, self.scorer, prompts, n, sampling, report)

    def drop(self) -> None:
        """Nothing waits here: what a batch has no use for is given up at once, since later it would be stale."""

    def fresh(self) -> list[Rollout]:
        """None: no batch is stale."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Where it stands among the prompts."""
        return {"done": self.done, "prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]


def prompts_to_ask(size: int, teaching: Sequence[bool]) -> int:
    """Prompts that the next round samples for a batch of `size` groups: as many as are missing, over the share of groups
    that taught, `size` at most; 0 where there are enough. teaching: of each group sampled so far, whether it teaches.
    """
    taught = sum(teaching)
    if not taught:
        return size
    return min(size, -(-max(0, size - taught) * len(teaching) // taught))


def choose(size: int, teaching: Sequence[bool]) -> list[int]:
    """Which groups make the batch, in the order of their prompts: the first `size` that teach, and where there are fewer,
    also the first ones that do not.
    """
    return sorted(sorted(range(len(teaching)), key=lambda i: not teaching[i])[:size])
