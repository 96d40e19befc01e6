"""Synchronous sampling: each batch is sampled and scored on demand with the current weights."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.config.stages import rollout_at
from gspo.interfaces import PromptSource, Report, Sampler, SamplerError, Scorer
from gspo.rollout.stages import sampling_at
from gspo.types import Group, Prompt, Rollout, Sampling


def sample_groups(
    sampler: Sampler, scorer: Scorer, prompts: Sequence[Prompt], n: int, sampling: Sampling, report: Report
) -> tuple[list[Group], dict[str, float]]:
    """Samples and scores n rollouts per prompt.

    Args:
        n: Rollouts per prompt.
        report: Called with the phase, the number of finished completions and their total.

    Returns:
        The groups, and metrics: seconds of sampling and of scoring, and the scorer's counters.
    """
    total = len(prompts) * n
    begin = time.perf_counter()
    rollouts = sampler.generate(prompts, n, sampling, lambda done: report("sampling", done, total))
    sampled = time.perf_counter()
    scored = scorer.score(rollouts, lambda done: report("scoring", done, total))
    groups = [Group(prompt, scored[i * n : (i + 1) * n]) for i, prompt in enumerate(prompts)]
    return groups, {"time/sample": sampled - begin, "time/score": time.perf_counter() - sampled} | scorer.counts()


def added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Sums by name; a missing name counts as 0."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in one | other}


class SynchronousSource:
    """Groups, batch after batch, sampled on demand with the current weights. A RolloutSource.

    A batch has num_prompts groups of num_generations rollouts.

    Attributes:
        delay: Number of batches that wait between sampling and use, so a batch is used `delay` weight versions late (the
            first ones less).
        waiting: Those batches.
        newest: The batch sampled last.
        done: Number of batches handed out, one per step.
        metrics: Sampling and scoring times for the last batch handed out, in seconds, and the scorer's counters.
    """

    unused: Sequence[str | None] = ()

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
        self.config = config
        self.num_prompts = config.num_prompts
        self.sampling = sampling
        self.report = report
        self.delay = config.delay
        self.waiting: deque[list[Group]] = deque()
        self.newest: list[Group] = []
        self.done = 0
        self.metrics: dict[str, float] = {}

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.metrics = {}
            self.prompts.begin(self.done)
            while len(self.waiting) <= self.delay:
                self.newest = self._sample(self.done + len(self.waiting) + 1)
                self.waiting.append(self.newest)
            self.done += 1
            self.metrics |= self.prompts.metrics(self.done)
            yield from self.waiting.popleft()

    def _sample(self, step: int) -> list[Group]:
        """Samples the batch that this step trains on."""
        # Each batch has its own seed, also after a resume: the number of the batch comes from the position.
        number = self.prompts.position // self.num_prompts
        assert isinstance(self.sampling.seed, int)
        rollout = rollout_at(self.config, self.prompts.stages, step)
        seed = self.sampling.seed * 1_000_003 + number
        sampling = dataclasses.replace(sampling_at(self.sampling, rollout), seed=seed)
        place = self.prompts.place
        prompts = self.prompts.take(self.num_prompts, step)
        try:
            groups, metrics = sample_groups(
                self.sampler, self.scorer, prompts, rollout.num_generations, sampling, self.report
            )
        except SamplerError:
            self.prompts.place = place  # a resumed run samples them again
            raise
        self.prompts.observe(groups)
        self.metrics = added(self.metrics, metrics)
        return groups

    @property
    def stale(self) -> bool:
        """Whether batches wait before use."""
        return self.delay > 0

    def fresh(self) -> list[Rollout]:
        """The rollouts of the batch sampled last."""
        return [rollout for group in self.newest for rollout in group.rollouts]

    def drop(self) -> None:
        """Discards the waiting rollouts."""
        self.waiting.clear()

    def state_dict(self) -> dict[str, Any]:
        """Position among the prompts and the waiting rollouts, in plain types."""
        waiting = [[saved_group(group.prompt, group.rollouts) for group in batch] for batch in self.waiting]
        return {"done": self.done, "prompts": self.prompts.state_dict(), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]
        for batch in state["waiting"]:
            self.waiting.append([Group(*restored_group(self.prompts, group)) for group in batch])


def saved_group(prompt: Prompt, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """The rollouts of a prompt, in plain types."""
    return {"prompt": prompt.id, "rollouts": [plain(rollout) for rollout in rollouts]}


def restored_group(prompts: PromptSource, saved: Mapping[str, Any]) -> tuple[Prompt, list[Rollout]]:
    """The prompt and the rollouts from the output of `saved_group`."""
    prompt = prompts.find(saved["prompt"])
    return prompt, [restored(prompt, rollout) for rollout in saved["rollouts"]]


def plain(rollout: Rollout) -> dict[str, Any]:
    """A rollout in plain types, without its prompt except the prompt tokens: an environment may start with other tokens than
    its row. Dialogue values that JSON cannot represent are saved as strings.
    """
    saved = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout) if f.name != "prompt"}
    dialogue = json.loads(json.dumps(rollout.dialogue, default=str))
    return saved | {"dialogue": dialogue, "prompt_tokens": rollout.prompt.tokens}


def restored(prompt: Prompt, saved: Mapping[str, Any]) -> Rollout:
    """The rollout from the output of `plain`."""
    fields = dict(saved)
    read = dataclasses.replace(prompt, tokens=tuple(fields.pop("prompt_tokens", prompt.tokens)))
    return Rollout(prompt=read, **(fields | {"dialogue": tuple(fields["dialogue"])}))
