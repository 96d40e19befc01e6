"""Prompts -> sampled and scored groups, each batch with the weights of the moment that it is asked for."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.ports import PromptSource, Report, Sampler, SamplerError, Scorer
from gspo.types import Group, Prompt, Rollout, Sampling


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
    metrics: the seconds that sampling took for the last batch handed out, and what the scorer counted.
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
        self.metrics: dict[str, float] = {}

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.metrics = {}
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
            groups, metrics = sample_groups(self.sampler, self.scorer, prompts, self.num_generations, sampling, self.report)
        except SamplerError:
            self.prompts.position -= self.num_prompts  # a resumed run asks for them again
            raise
        self.metrics = added(self.metrics, metrics)
        return groups

    @property
    def stale(self) -> bool:
        """Whether batches wait."""
        return self.delay > 0

    def fresh(self) -> list[Rollout]:
        """Those of the batch that was sampled last."""
        return [rollout for group in self.newest for rollout in group.rollouts]

    def drop(self) -> None:
        """Gives up the rollouts that wait."""
        self.waiting.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rollouts that wait, in plain types. Their prompts are the last ones that the stream handed out."""
        waiting = [[plain(rollout) for group in batch for rollout in group.rollouts] for batch in self.waiting]
        return {"position": self.prompts.position, "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.prompts.position = state["position"] - len(state["waiting"]) * self.num_prompts
        n = self.num_generations
        for batch in state["waiting"]:
            rollouts = iter(batch)
            prompts = self.prompts.take(self.num_prompts)
            groups = [Group(prompt, [restored(prompt, next(rollouts)) for _ in range(n)]) for prompt in prompts]
            self.waiting.append(groups)


def plain(rollout: Rollout) -> dict[str, Any]:
    """A rollout in plain types, without its prompt but for the tokens that were read first: an environment may begin with
    others than its row says, and may say anything.
    """
    saved = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout) if f.name != "prompt"}
    dialogue = json.loads(json.dumps(rollout.dialogue, default=str))
    return saved | {"dialogue": dialogue, "prompt_tokens": rollout.prompt.tokens}


def restored(prompt: Prompt, saved: Mapping[str, Any]) -> Rollout:
    """The rollout of `plain`."""
    fields = dict(saved)
    read = dataclasses.replace(prompt, tokens=tuple(fields.pop("prompt_tokens", prompt.tokens)))
    return Rollout(prompt=read, **(fields | {"dialogue": tuple(fields["dialogue"])}))
