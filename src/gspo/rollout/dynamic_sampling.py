"""Dynamic sampling: samples prompts until enough groups have differing rewards (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from gspo.config.policy import ResolvedAlgorithm
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
    """Groups, batch after batch, sampled on demand with the current weights (rollout.refill > 0). A RolloutSource.

    A batch starts with num_prompts prompts. While fewer groups than that have a non-zero advantage, as training computes it,
    more rounds of prompts follow, at most `refill`.

    Attributes:
        done: Number of batches handed out.
        metrics: Also the sampling metrics of all completions sampled for the batch, and `refill/...`.
    """

    stale = False

    def __init__(
        self,
        prompts: PromptSource,
        sampler: Sampler,
        scorer: Scorer,
        config: RolloutConfig,
        algorithm: ResolvedAlgorithm,
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
            self.prompts.place = place  # a resumed run samples them again, starting with the first round
            raise
        self.prompts.observe(sampled)
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
        """Samples the groups of the next prompts. before: number of groups already sampled for the batch."""
        # The seed depends on the number of prompts handed out, not of rounds, since rounds differ in size.
        assert isinstance(self.sampling.seed, int)
        rollout = rollout_at(self.config, self.prompts.stages, self.done + 1)
        seed = self.sampling.seed * 1_000_003 + self.prompts.position
        sampling, n = dataclasses.replace(sampling_at(self.sampling, rollout), seed=seed), rollout.num_generations

        def report(phase: str, done: int, total: int) -> None:
            self.report(phase, before * n + done, before * n + total)

        prompts = self.prompts.take(count, self.done + 1)
        return sample_groups(self.sampler, self.scorer, prompts, n, sampling, report)

    def drop(self) -> None:
        """Nothing waits: surplus groups are discarded at once, since they would be stale later."""

    def fresh(self) -> list[Rollout]:
        """Empty: no batch is stale."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Position among the prompts, in plain types."""
        return {"done": self.done, "prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]


def prompts_to_ask(size: int, teaching: Sequence[bool]) -> int:
    """Number of prompts in the next round for a batch of `size` groups: the missing groups divided by the share of groups
    with signal so far, at most `size`; 0 if there are enough. teaching: whether each group sampled so far has signal.
    """
    taught = sum(teaching)
    if not taught:
        return size
    return min(size, -(-max(0, size - taught) * len(teaching) // taught))


def choose(size: int, teaching: Sequence[bool]) -> list[int]:
    """Indices of the groups in the batch, in prompt order: the first `size` with signal; if there are fewer, filled up with
    the first ones without.
    """
    return sorted(sorted(range(len(teaching)), key=lambda i: not teaching[i])[:size])
