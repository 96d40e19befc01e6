"""Asynchronous sampling: runs ahead of the trainer by at most k weight versions, and never waits for it."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.config.stages import rollout_at
from gspo.interfaces import Job, Report, Scorer, StreamingSampler, seed_of
from gspo.rollout.overlong import penalised
from gspo.rollout.stages import Curriculum, sampling_at
from gspo.types import Group, Metrics, Prompt, Rollout, Sampling

POLL = 0.01  # polling interval in seconds


@dataclass
class Flight:
    """The completions of one prompt that are in progress."""

    number: int  # index in the stream of prompts
    prompt: Prompt
    so_far: list[Rollout]  # saved partial completions, until they are resumed
    jobs: list[Job] = field(default_factory=list)

    def known(self) -> list[Rollout]:
        """Its completions, as far as they have been sampled."""
        return [job.so_far for job in self.jobs] if self.jobs else self.so_far


@dataclass
class AsynchronousSource:
    """Groups, batch after batch, while later ones are being sampled (rollout.max_staleness = k > 0). A RolloutSource.

    (k + 1) x num_prompts groups are in progress, and a batch takes the oldest. The order is that of the prompts regardless
    of completion length, so no length is favoured. A long completion, or an episode in a slow environment, has k more steps
    to finish before the trainer waits for it, and no token is older than k versions.
    """

    prompts: Curriculum
    sampler: StreamingSampler
    scorer: Scorer
    config: RolloutConfig
    sampling: Sampling
    report: Report = lambda phase, done, total: None
    steps: float = math.inf  # nothing is sampled for later ones
    done: int = 0
    flights: deque[Flight] = field(default_factory=deque)
    metrics: Metrics = field(default_factory=dict)
    unused: Sequence[str | None] = ()
    stale: bool = True

    def fresh(self) -> list[Rollout]:
        """The probes with which the sampler verified the current weights."""
        return self.sampler.probes

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.prompts.begin(self.done)
            self._begin()
            begin = time.perf_counter()
            batch = self._wait()
            waited = time.perf_counter()
            rollouts = [job.result() for flight in batch for job in flight.jobs]
            total, owners = len(rollouts), [i for i, flight in enumerate(batch) for _ in flight.jobs]
            settings = rollout_at(self.config, self.prompts.stages, self.done + 1)
            scored = iter(penalised(self.scorer.score(rollouts, partial(self._scored, total), owners), settings))
            self.metrics = {"time/sample": waited - begin, "time/score": time.perf_counter() - waited}
            self.metrics |= self.scorer.counts()
            for _ in batch:
                self.flights.popleft()
            groups = [Group(flight.prompt, [next(scored) for _ in flight.jobs]) for flight in batch]
            self.prompts.observe(groups)
            self.done += 1
            self.metrics |= self.prompts.metrics(self.done)
            yield from groups

    def _scored(self, total: int, done: int) -> None:
        self.report("scoring", done, total)

    def _begin(self) -> None:
        """Starts groups up to the limit, and resumes saved ones."""
        while len(self.flights) < (self.config.max_staleness + 1) * self.config.num_prompts:
            number, step = self.prompts.position, self._step(len(self.flights))
            if step > self.steps:
                break
            (prompt,) = self.prompts.take(1, step)
            n = rollout_at(self.config, self.prompts.stages, step).num_generations
            self.flights.append(Flight(number, prompt, [Rollout.begun(prompt)] * n))
        for place, flight in enumerate(self.flights):
            if not flight.jobs:
                sampling = sampling_at(self.sampling, rollout_at(self.config, self.prompts.stages, self._step(place)))
                flight.jobs = [
                    self.sampler.begin(so_far, seed_of(sampling.seed, flight.number, j), sampling)
                    for j, so_far in enumerate(flight.so_far)
                ]

    def _step(self, place: int) -> int:
        """The step that trains on the flight at this place in the queue."""
        return self.done + 1 + place // self.config.num_prompts

    def _wait(self) -> list[Flight]:
        """Waits for all groups of the next batch."""
        batch = list(self.flights)[: self.config.num_prompts]
        jobs = [job for flight in batch for job in flight.jobs]
        while True:
            ended = [job for job in jobs if job.done()]
            for job in ended:
                job.result()  # raises immediately if the engine is lost
            self.report("sampling", len(ended), len(jobs))
            if len(ended) == len(jobs):
                return batch
            time.sleep(POLL)

    def drop(self, good: Mapping[str, Any]) -> None:
        """Cancels everything in progress after a rewind. Its prompts are skipped for the rest of this pass."""
        self.prompts.forget(good["prompts"])
        for flight in self.flights:
            for job in flight.jobs:
                job.cancel()
        self.flights.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything in progress, including partial completions, in plain types."""
        flights = [
            {"number": flight.number, "prompt": flight.prompt.id, "rollouts": list(map(plain, flight.known()))}
            for flight in self.flights
        ]
        return {"done": self.done, "prompts": self.prompts.state_dict(), "flights": flights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`: completions resume where they were, unfinished episodes start over."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]
        for saved in state["flights"]:
            prompt = self.prompts.find(saved["prompt"])
            self.flights.append(Flight(saved["number"], prompt, [restored(prompt, each) for each in saved["rollouts"]]))


def plain(rollout: Rollout) -> dict[str, Any]:
    """A rollout in plain types; of its prompt only the tokens, which an environment may have changed."""
    saved = {f.name: getattr(rollout, f.name) for f in dataclasses.fields(rollout) if f.name != "prompt"}
    dialogue = json.loads(json.dumps(rollout.dialogue, default=str))
    return saved | {"dialogue": dialogue, "prompt_tokens": rollout.prompt.tokens}


def restored(prompt: Prompt, saved: Mapping[str, Any]) -> Rollout:
    """The rollout from the output of `plain`."""
    fields = dict(saved)
    read = dataclasses.replace(prompt, tokens=tuple(fields.pop("prompt_tokens", prompt.tokens)))
    return Rollout(prompt=read, **(fields | {"dialogue": tuple(fields["dialogue"])}))
