"""Sampling ahead of the trainer, with an engine that is scripted here; tests/backends/vllm/engine has a real one."""

import dataclasses
from functools import partial

import pytest
import torch

from gspo.config.rollout import RolloutConfig
from gspo.data.refresh import Pool
from gspo.interfaces import SamplerError, TeacherFailed
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.metrics import staleness
from gspo.rollout.stages import TASK, Curriculum
from gspo.rollout.synchronous import SynchronousSource
from gspo.types import Prompt, Rollout, Sampling
from tests.rollout.test_synchronous import Echo, Ones

P, G = 4, 2


def length_of(number, j):
    """Tokens of a completion: most are short, one in eight is fifty times as long."""
    return 200 if number % 4 == 0 and j == 0 else 4


class Engine:
    """Gives every completion under way a few tokens each time that a batch is looked at; `load` interrupts all of them."""

    def __init__(self, speed=3):
        self.version, self.speed, self.jobs, self.dead, self.looks = 0, speed, [], False, 0
        self.probes = [Rollout.begun(Prompt("probe", "", (1,)))]

    def begin(self, so_far, seed, sampling):
        self.jobs.append(Scripted(self, so_far))
        return self.jobs[-1]

    def tick(self):
        self.looks += 1
        if self.looks % (P * G) == 0 and not self.dead:
            for job in self.jobs:
                job.grow(self.speed)

    def load(self, version):
        for job in self.jobs:
            job.so_far = job.now
        self.version = version


class Scripted:
    def __init__(self, engine, so_far):
        self.engine, self.so_far, self.now, self.cancelled = engine, so_far, so_far, False
        self.wanted = so_far.prompt.columns["length"](sum(job.now.prompt is so_far.prompt for job in engine.jobs))

    def grow(self, speed):
        new = min(speed, self.wanted - int(self.now.sampled.sum()))
        if new > 0:
            self.now = dataclasses.replace(
                self.now,
                tokens=torch.cat([self.now.tokens, torch.full((new,), 5)]),
                sampled=torch.cat([self.now.sampled, torch.ones(new).bool()]),
                logp=torch.cat([self.now.logp, torch.full((new,), -1.0)]),
                version=torch.cat([self.now.version, torch.full((new,), self.engine.version)]),
            )
        if int(self.now.sampled.sum()) == self.wanted:
            self.so_far = self.now = dataclasses.replace(self.now, stop="eos")

    def done(self):
        self.engine.tick()
        return self.so_far.stop == "eos" or self.engine.dead

    def result(self):
        if self.engine.dead:
            raise SamplerError("dead")
        return self.so_far

    def cancel(self):
        self.cancelled = True


def prompts(count, lengths=length_of):
    return [Prompt(str(i), "", (2, 3), {"length": partial(lengths, i)}) for i in range(count)]


def stream(rows):
    return Curriculum([Pool(TASK, rows, 0)])


def source_of(engine, queries, k):
    config = RolloutConfig(num_prompts=P, num_generations=G, max_staleness=k)
    return AsynchronousSource(queries, engine, Ones(), config, Sampling(256))


def steps(source, engine, count):
    """The groups of each step; after each the weights move on."""
    groups, found = iter(source), []
    for _ in range(count):
        found.append([next(groups) for _ in range(P)])
        bound = [engine.version - int(r.version[r.sampled].min()) for group in found[-1] for r in group.rollouts]
        assert max(bound) <= source.config.max_staleness
        engine.load(engine.version + 1)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("gspo.rollout.asynchronous.POLL", 0.0)


@pytest.mark.parametrize("of", [AsynchronousSource, SynchronousSource])
def test_a_prompt_that_is_twice_in_a_batch_has_two_groups(of):
    config = RolloutConfig(num_prompts=P, num_generations=G, max_staleness=int(of is AsynchronousSource))
    source = of(stream(prompts(1)), Engine() if config.max_staleness else Echo(), Ones(), config, Sampling(256, seed=1))
    next(iter(source))
    assert source.scorer.groups == [i // G for i in range(P * G)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_token_is_too_old_and_every_prompt_has_its_turn_once(k):
    engine, queries = Engine(), stream(prompts(40))
    found = steps(source_of(engine, queries, k), engine, 9)
    ids = [group.prompt.id for step in found for group in step]
    assert len(ids) == len(set(ids)) == 36 and queries.position <= 40 + k * P
    assert all(r.stop == "eos" and r.reward == 1 for step in found for group in step for r in group.rollouts)
    ages = [staleness([r for group in step for r in group.rollouts], v) for v, step in enumerate(found)]
    assert ages[0] == 0 and 0 < max(ages) <= k


def test_nothing_is_sampled_for_steps_after_the_last():
    engine, queries = Engine(), stream(prompts(40))
    source = source_of(engine, queries, 2)
    source.steps = 5
    steps(source, engine, 5)
    assert queries.position == 5 * P and not source.flights


def test_long_completions_are_late_and_not_left_out():
    """The share of long completions among those trained on is that among those asked for."""
    engine, queries = Engine(speed=40), stream(prompts(400))
    found = steps(source_of(engine, queries, 2), engine, 98)
    lengths = [int(r.sampled.sum()) for step in found for group in step for r in group.rollouts]
    expected = [length_of(int(g.prompt.id), j) for step in found for g in step for j in range(G)]
    assert lengths == expected
    assert len({group.prompt.id for step in found for group in step}) == 98 * P
    assert abs(sum(n == 200 for n in lengths) / len(lengths) - 1 / 8) < 0.02


@pytest.mark.parametrize("stop", [1, 3])
def test_a_resumed_run_loses_nothing(stop):
    engine, queries = Engine(speed=1), stream(prompts(40, lambda i, j: 9 + 7 * (i % 3)))
    source = source_of(engine, queries, 2)
    first = steps(source, engine, stop)
    state, position = source.state_dict(), queries.position
    under_way = {one["prompt"]: one["rollouts"] for one in state["flights"]}
    assert len(under_way) == 2 * P and any(int(r["sampled"].sum()) > 0 for each in under_way.values() for r in each)
    again = stream(prompts(40, lambda i, j: 9 + 7 * (i % 3)))
    other = Engine(speed=1)
    other.version = engine.version
    resumed = source_of(other, again, 2)
    resumed.load_state_dict(state)
    assert again.position == position and resumed.state_dict()["flights"][0]["number"] == state["flights"][0]["number"]
    rest = steps(resumed, other, 8 - stop)
    ids = [group.prompt.id for step in first + rest for group in step]
    assert len(ids) == len(set(ids)) == 8 * P
    begun = {group.prompt.id: group for step in rest for group in step}
    for name, rollouts in under_way.items():
        group = begun.get(name)
        for known, r in zip(rollouts, group.rollouts if group else ()):
            size = len(known["tokens"])
            assert torch.equal(r.tokens[:size], known["tokens"]) and torch.equal(r.version[:size], known["version"])


def test_a_lost_engine_ends_the_wait():
    engine = Engine()
    source = source_of(engine, stream(prompts(40)), 1)
    steps(source, engine, 2)
    engine.dead = True
    with pytest.raises(SamplerError, match="dead"):
        next(iter(source))
    assert len(source.state_dict()["flights"]) >= P


def test_a_batch_that_the_teacher_did_not_read_is_not_lost():
    engine = Engine()
    source = source_of(engine, stream(prompts(40)), 1)
    steps(source, engine, 2)

    def fails(rollouts, progress=None, groups=None):
        raise TeacherFailed("down")

    source.scorer.score = fails
    with pytest.raises(TeacherFailed):
        next(iter(source))
    state = source.state_dict()
    assert state["done"] == 2 and [flight["number"] for flight in state["flights"]] == [*range(2 * P, 4 * P)]
    again = source_of(Engine(), stream(prompts(40)), 1)
    again.load_state_dict(state)
    (batch,) = steps(again, again.sampler, 1)
    assert [group.prompt.id for group in batch] == [flight["prompt"] for flight in state["flights"][:P]]


def test_what_is_dropped_is_cancelled():
    engine = Engine()
    source = source_of(engine, stream(prompts(40)), 1)
    steps(source, engine, 1)
    jobs = [job for flight in source.flights for job in flight.jobs]
    source.drop(source.state_dict())
    assert jobs and all(job.cancelled for job in jobs) and not source.state_dict()["flights"]
