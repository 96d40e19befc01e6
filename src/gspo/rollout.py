"""Prompts -> sampled and scored groups -> replies ready for the learner. A failed rollout is data, counted here."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gspo.config.policy import AlgorithmConfig
from gspo.config.rollout import RolloutConfig
from gspo.guard import repetition
from gspo.objective.advantages import group_advantages, turn_advantages
from gspo.objective.algorithms import Algorithm
from gspo.ports import Sampler, SamplerError
from gspo.types import Group, Prompt, Reply, Rollout, Sampling


class Scorer(Protocol):
    """Gives each rollout its reward, or None and the reason (rewards/scorer.py)."""

    def score(self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None) -> list[Rollout]:
        """The same rollouts, scored."""
        ...

    def counts(self) -> dict[str, float]:
        """What was counted while scoring, since this was last asked."""
        ...


class PromptSource(Protocol):
    """Hands out prompts, pass after pass (data/prompts.py)."""

    position: int

    def take(self, k: int) -> list[Prompt]:
        """The next k prompts."""
        ...


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


Report = Callable[[str, int, int], None]


def sample_groups(
    sampler: Sampler, scorer: Scorer, prompts: Sequence[Prompt], n: int, sampling: Sampling, report: Report
) -> tuple[list[Group], dict[str, float]]:
    """n scored rollouts of each prompt; the seconds that sampling and scoring took, and what the scorer counted.

    `report(phase, done, total)` is told how far it is.
    """
    total = len(prompts) * n
    begin = time.perf_counter()
    rollouts = sampler.generate(prompts, n, sampling, lambda done: report("sampling", done, total))
    sampled = time.perf_counter()
    scored = scorer.score(rollouts, lambda done: report("scoring", done, total))
    groups = [Group(prompt, scored[i * n : (i + 1) * n]) for i, prompt in enumerate(prompts)]
    return groups, {"time/sample": sampled - begin, "time/score": time.perf_counter() - sampled} | scorer.counts()


def added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Sums by name; what one of them lacks counts 0."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in one | other}


class SynchronousSource:
    """Groups, batch after batch, each sampled with the weights of the moment that it is asked for.

    num_prompts groups of num_generations rollouts a batch. delay: batches that wait between sampling and use, so a batch
    is used `delay` weight versions late (the first ones less). waiting: those that do. newest: the batch sampled last.
    seconds: what sampling took for the last batch handed out, and what the scorer counted.
    """

    def __init__(
        self,
        prompts: PromptSource,
        sampler: Sampler,
        scorer: Scorer,
        config: RolloutConfig,
        sampling: Sampling,
        report: Report = lambda phase, done, total: None,
    ):
        self.prompts = prompts
        self.sampler = sampler
        self.scorer = scorer
        self.num_prompts = config.num_prompts
        self.num_generations = config.num_generations
        self.sampling = sampling
        self.report = report
        self.delay = config.delay
        self.waiting: deque[list[Group]] = deque()
        self.newest: list[Group] = []
        self.seconds: dict[str, float] = {}

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.seconds = {}
            while len(self.waiting) <= self.delay:
                self.newest = self._sample()
                self.waiting.append(self.newest)
            yield from self.waiting.popleft()

    def _sample(self) -> list[Group]:
        # A seed of its own for each batch, also after a resume: the position counts batches.
        number = self.prompts.position // self.num_prompts
        assert isinstance(self.sampling.seed, int)
        sampling = dataclasses.replace(self.sampling, seed=self.sampling.seed * 1_000_003 + number)
        prompts = self.prompts.take(self.num_prompts)
        try:
            groups, seconds = sample_groups(self.sampler, self.scorer, prompts, self.num_generations, sampling, self.report)
        except SamplerError:
            self.prompts.position -= self.num_prompts  # a resumed run asks for them again
            raise
        self.seconds = added(self.seconds, seconds)
        return groups

    def drop(self) -> None:
        """Gives up the rollouts that wait."""
        self.waiting.clear()

    def state_dict(self) -> list[list[dict[str, Any]]]:
        """The rollouts that wait, in plain types. Their prompts are the last ones that the stream handed out."""
        return [[plain(rollout) for group in batch for rollout in group.rollouts] for batch in self.waiting]

    def load_state_dict(self, state: list[list[dict[str, Any]]]) -> None:
        """Continue from `state_dict()`; the stream of prompts stands where it stood then."""
        self.prompts.position -= len(state) * self.num_prompts
        n = self.num_generations
        for batch in state:
            rollouts = iter(batch)
            prompts = self.prompts.take(self.num_prompts)
            groups = [Group(prompt, [Rollout(prompt=prompt, **next(rollouts)) for _ in range(n)]) for prompt in prompts]
            self.waiting.append(groups)


@dataclass
class Learnable:
    """What one rollout batch gives the learner.

    groups: the replies of each group that is trained on. advantages: A_i of each rollout, in the order of the rollouts, or
    A_ik of its turns; None where it is not trained on. counts: metrics.
    """

    groups: list[list[Reply]] = field(default_factory=list)
    advantages: list[float | list[float] | None] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


def learnable(groups: Sequence[Group], row: Algorithm, algorithm: AlgorithmConfig, mask_truncated: bool) -> Learnable:
    """Advantages, and the replies that have one. Groups that are left out, wholly or in part, are counted."""
    advantages, replies = trained_on(groups, algorithm, mask_truncated)
    left = [group for group in replies if group]
    teaching = [group for group in left if teaches(group)]
    return Learnable(
        groups=teaching if row.drops_equal else left,
        advantages=[A.tolist() if isinstance(A, Tensor) else A for A in advantages],
        counts=sampled_metrics([rollout for group in groups for rollout in group.rollouts])
        | {
            "frac_reward_zero_std": (len(left) - len(teaching)) / max(1, len(left)),
            "reward_std": _mean_std(left),
            "groups/dropped": float(len(groups) - len(left)),
        },
    )


def trained_on(
    groups: Sequence[Group], algorithm: AlgorithmConfig, mask_truncated: bool
) -> tuple[list[float | Tensor | None], list[list[Reply]]]:
    """The advantage of each rollout, None where it is not trained on, and the replies of each group that are.

    A rollout without a reward, and with mask_truncated one that was cut off, leaves its group's mean and standard
    deviation and every denominator. A group with fewer than two left has none.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    owner = torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64)
    kept = torch.tensor([r.reward is not None and not (mask_truncated and r.stop == "length") for r in rollouts])
    kept &= torch.bincount(owner[kept], minlength=len(groups))[owner] >= 2
    indices = kept.nonzero()[:, 0].tolist()
    advantages: list[float | Tensor | None] = [None] * len(rollouts)
    replies: list[list[Reply]] = [[] for _ in groups]
    for index, advantage in zip(indices, credited([rollouts[i] for i in indices], owner[kept], algorithm)):
        advantages[index] = advantage
        replies[int(owner[index])].append(reply_of(rollouts[index], advantage))
    return advantages, replies


def teaches(group: Sequence[Reply]) -> bool:
    """Whether an advantage in a group differs from zero."""
    return any(bool(torch.as_tensor(reply.advantage).any()) for reply in group)


def credited(rollouts: Sequence[Rollout], group: Tensor, algorithm: AlgorithmConfig) -> list[float | Tensor]:
    """The advantage of each rollout, A_i or A_ik [turns]. group [S]: whose each is."""
    scale = algorithm.scale_rewards or "group"
    if algorithm.credit == "reply":
        rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
        return [*group_advantages(rewards, group, scale).tolist()]
    return [*turn_advantages([turn_rewards(rollout) for rollout in rollouts], group, scale, algorithm.discount)]


def turn_rewards(rollout: Rollout) -> tuple[float, ...]:
    """r of each turn: all at the end, where turns are not rewarded apart."""
    turns = 1 if rollout.turn is None else int(rollout.turn.max()) + 1
    assert rollout.reward is not None
    return rollout.turn_rewards or (*[0.0] * (turns - 1), rollout.reward)


def reply_of(rollout: Rollout, advantage: float | Tensor) -> Reply:
    """A rollout for the learner, with the sampler as its pi_old. advantage: A_i, or A_ik of its turns."""
    mu = rollout.logp[rollout.sampled]
    turn = None if rollout.turn is None else rollout.turn[rollout.sampled]
    if isinstance(advantage, Tensor) and advantage.ndim:
        advantage = advantage[torch.zeros(len(mu), dtype=torch.int64) if turn is None else turn]
    return Reply(
        rollout.tokens, rollout.sampled, mu, mu, advantage, routes=rollout.routes, reward=rollout.reward or 0.0, turn=turn,
        parent=rollout.parent,
    )  # fmt: skip


def sampled_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """What a step tells of the replies that were sampled for it."""
    return batch_metrics(rollouts) | {"rollouts/failed": float(sum(r.reward is None for r in rollouts))}


def batch_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means over scored rollouts of the reward and its parts, and the lengths of all."""
    scored = [r.reward for r in rollouts if r.reward is not None]
    lengths = [int(r.sampled.sum()) for r in rollouts]
    names = sorted({name for r in rollouts for name in r.reward_parts})
    parts = {name: [v for r in rollouts if (v := r.reward_parts.get(name)) is not None] for name in names}
    metrics = {
        "reward": sum(scored) / len(scored) if scored else float("nan"),
        "completions/mean_length": sum(lengths) / max(1, len(lengths)),
        "completions/repetition": sum(repetition(r.tokens[r.sampled].tolist()) for r in rollouts) / max(1, len(rollouts)),
        "completions/clipped_ratio": sum(r.stop == "length" for r in rollouts) / max(1, len(rollouts)),
        "tokens": sum(lengths),
    }
    return metrics | {f"reward/{name}": sum(values) / len(values) for name, values in parts.items() if values}


def staleness(rollouts: Sequence[Rollout], version: int) -> float:
    """How many versions the weights that sampled the tokens lie behind `version`, mean over sampled tokens."""
    versions = torch.cat([rollout.version[rollout.sampled] for rollout in rollouts])
    return version - float(versions.double().mean())


def in_parts(rollouts: Sequence[Rollout]) -> float:
    """Share of the replies that weights of several versions sampled."""
    return sum(len(rollout.version[rollout.sampled].unique()) > 1 for rollout in rollouts) / max(1, len(rollouts))


def describe(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a line of JSON. version: the newest weights that sampled any of its tokens."""
    return {
        "prompt_id": rollout.prompt.id,
        "prompt": rollout.prompt.messages,
        "completion": rollout.text,
        "token_ids": rollout.tokens[len(rollout.prompt.tokens) :].tolist(),
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
        "version": int(rollout.version.max()),
        "stop": rollout.stop,
        "error": rollout.error,
    } | ({"dialogue": list(rollout.dialogue)} if rollout.dialogue else {})


def plain(rollout: Rollout) -> dict[str, Any]:
    """A rollout in plain types, without its prompt."""
    return {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout) if f.name != "prompt"}


def _mean_std(groups: Sequence[list[Reply]]) -> float:
    stds = [float(torch.tensor([reply.reward for reply in group], dtype=torch.float64).std()) for group in groups]
    return sum(stds) / len(stds) if stds else 0.0


def split(groups: Sequence[list[Reply]], parts: int) -> list[list[Reply]]:
    """The groups dealt out into `parts` mini-batches of nearly equal size, in order; empty ones are left out."""
    edges = [round(i * len(groups) / parts) for i in range(parts + 1)]
    batches = [[reply for group in groups[a:b] for reply in group] for a, b in zip(edges, edges[1:])]
    return [batch for batch in batches if batch]
