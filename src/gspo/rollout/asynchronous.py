"""Sampling that runs ahead of the trainer by at most k weight versions, and never waits for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.config.stages import rollout_at
from gspo.interfaces import Job, PromptSource, Report, Scorer, StreamingSampler, seed_of
from gspo.rollout.stages import sampling_at
from gspo.rollout.synchronous import restored_group, saved_group
from gspo.types import Group, Prompt, Rollout, Sampling

POLL = 0.01  # seconds between two looks at the engine


@dataclass
class Flight:
    """The completions to one prompt on their way. number: its place in the stream of prompts. so_far: its completions as
    they were saved, until they go on. jobs: those that are being sampled.
    """

    number: int
    prompt: Prompt
    so_far: list[Rollout]
    jobs: list[Job] = field(default_factory=list)

    def known(self) -> list[Rollout]:
        """Its completions, as far as they are known."""
        return [job.so_far for job in self.jobs] if self.jobs else self.so_far


class AsynchronousSource:
    """Groups, batch after batch, while others are being sampled (rollout.max_staleness = k > 0).

    (k + 1) x num_prompts groups are under way, and a batch takes the oldest: the order is that of the prompts, whatever
    their completions' lengths, so no length is favoured. A long completion, or an episode of a slow environment, has k steps
    more to end before the trainer waits for it, and no token is older than k versions. done: batches handed out. As in
    ports.RolloutSource.
    """

    def __init__(
        self,
        prompts: PromptSource,
        sampler: StreamingSampler,
        scorer: Scorer,
        config: RolloutConfig,
        sampling: Sampling,
        report: Report = lambda phase, done, total: None,
    ):
        self.prompts, self.sampler, self.scorer = prompts, sampler, scorer
        self.sampling, self.report = sampling, report
        self.config, self.num_prompts, self.delay = config, config.num_prompts, config.max_staleness
        self.done = 0
        self.flights: deque[Flight] = deque()
        self.metrics: dict[str, float] = {}

    stale = True
    unused: Sequence[str | None] = ()

    def fresh(self) -> list[Rollout]:
        """Those by which the sampler proved the present weights."""
        return self.sampler.probes

    def __iter__(self) -> Iterator[Group]:
        while True:
            self.prompts.begin(self.done)
            self._begin()
            begin = time.perf_counter()
            batch = self._wait()
            waited = time.perf_counter()
            rollouts = [job.result() for flight in batch for job in flight.jobs]
            total = len(rollouts)
            scored = iter(self.scorer.score(rollouts, partial(self._scored, total)))
            self.metrics = {"time/sample": waited - begin, "time/score": time.perf_counter() - waited}
            self.metrics |= self.scorer.counts()
            for _ in batch:
                self.flights.popleft()
            groups = [Group(flight.prompt, [next(scored) for _ in flight.jobs]) for flight in batch]
            self.prompts.see(groups)
            self.done += 1
            self.metrics |= self.prompts.metrics(self.done)
            yield from groups

    def _scored(self, total: int, done: int) -> None:
        self.report("scoring", done, total)

    def _begin(self) -> None:
        """Has as many groups under way as may be."""
        while len(self.flights) < (self.delay + 1) * self.num_prompts:
            number, step = self.prompts.position, self._step(len(self.flights))
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
        """The step that trains on the flight of this place."""
        return self.done + 1 + place // self.num_prompts

    def _wait(self) -> list[Flight]:
        """The groups of the next batch, done."""
        batch = list(self.flights)[: self.num_prompts]
        jobs = [job for flight in batch for job in flight.jobs]
        while True:
            ended = [job for job in jobs if job.done()]
            for job in ended:
                job.result()  # raises at once where the engine is lost
            self.report("sampling", len(ended), len(jobs))
            if len(ended) == len(jobs):
                return batch
            time.sleep(POLL)

    def drop(self) -> None:
        """Gives up what is under way, after the weights went back: their prompts are not trained on in this pass."""
        for flight in self.flights:
            for job in flight.jobs:
                job.cancel()
        self.flights.clear()

    def state_dict(self) -> dict[str, Any]:
        """All that is under way, half-finished completions included, in plain types."""
        flights = [{"number": flight.number} | saved_group(flight.prompt, flight.known()) for flight in self.flights]
        return {"done": self.done, "prompts": self.prompts.state_dict(), "flights": flights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`; completions go on where they were, episodes that had not ended begin again."""
        self.prompts.load_state_dict(state["prompts"])
        self.done = state["done"]
        for flight in state["flights"]:
            self.flights.append(Flight(flight["number"], *restored_group(self.prompts, flight)))
