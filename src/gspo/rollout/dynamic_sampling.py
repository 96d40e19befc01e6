"""Dynamic sampling: samples prompts until enough groups have differing rewards (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gspo.config.policy import ResolvedAlgorithm
from gspo.rollout.credit import has_signal, trained_on, within_groups
from gspo.rollout.failures import errors
from gspo.rollout.metrics import sampled_metrics
from gspo.rollout.synchronous import SynchronousSource
from gspo.types import Completion, Group


@dataclass
class DynamicSamplingSource(SynchronousSource):
    """A SynchronousSource that samples more prompts until enough groups have a signal (dynamic_sampling_rounds > 0).

    A batch starts with num_prompts prompts. While fewer groups than that have a non-zero advantage, as training computes it,
    more rounds of prompts follow, at most `dynamic_sampling_rounds`. Surplus groups are discarded at once: they would be
    stale later. The metrics are those of all completions sampled for the batch.
    """

    algorithm: ResolvedAlgorithm = field(kw_only=True)

    def _batch(self) -> list[Group]:
        size = self.config.num_prompts
        sampled: list[Group] = []
        completions: list[list[Completion]] = []
        teaching: list[bool] = []
        spent: dict[str, float] = {}
        rounds = 0
        while rounds <= self.config.dynamic_sampling_rounds and (count := prompts_to_ask(size, teaching)):
            # The seed depends on the number of prompts handed out, not of rounds, since rounds differ in size.
            groups, metrics = self._sample(count, self.prompts.position, len(sampled))
            sampled += groups
            _, new = trained_on(groups, self.algorithm, self.config.mask_truncated_completions)
            completions += new
            teaching += map(has_signal, new)
            spent = {name: spent.get(name, 0.0) + metrics.get(name, 0.0) for name in spent | metrics}
            rounds += 1
        self.prompts.observe(sampled)
        self.metrics = spent | sampled_metrics(sampled) | within_groups([group for group in completions if group])
        self.metrics |= {
            "dynamic_sampling/queries": len(sampled),
            "dynamic_sampling/rounds": rounds - 1,
            "dynamic_sampling/signal": sum(teaching) / len(teaching),
            "dynamic_sampling/unused": max(0, sum(teaching) - size),
        }
        chosen = choose(size, teaching)
        self.unused = errors([group for i, group in enumerate(sampled) if i not in chosen])
        return [sampled[i] for i in chosen]


def prompts_to_ask(size: int, teaching: Sequence[bool]) -> int:
    """Number of prompts in the next round for a batch of `size` groups: the missing groups divided by the share of groups
    with signal so far, at most `size`; 0 if there are enough. teaching: whether each group sampled so far has signal.
    """
    taught = sum(teaching)
    if not taught:
        return size
    return min(size, -(-max(0, size - taught) * len(teaching) // taught))


def choose(size: int, teaching: Sequence[bool]) -> list[int]:
    """Indices of the batch's groups, in prompt order: the first `size` with signal, filled up by the first without."""
    return sorted(sorted(range(len(teaching)), key=lambda i: not teaching[i])[:size])
