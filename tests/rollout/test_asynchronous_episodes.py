"""Episodes that go on while weights change, sampled by a real tiny model a few tokens at a time."""

import asyncio
import copy
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from gspo.agents.environment import Step
from gspo.agents.episodes import Episodes
from gspo.backends.hf.sampler import HFSampler
from gspo.config.rollout import RolloutConfig, TaskConfig
from gspo.data.chat_template import Encoder
from gspo.data.refresh import Pool
from gspo.interfaces import Job, SamplerError
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.external import AlreadyScored
from gspo.rollout.metrics import in_parts, staleness
from gspo.rollout.stages import TASK, Curriculum
from gspo.types import Prompt, Sampling
from tests.leap import leap
from tests.patience import PATIENCE
from tests.serving.served import tiny

P, G, LONGEST = 2, 2, 12
SAMPLING = Sampling(LONGEST, seed=5, stop_ids=())


class Pieces:
    """Samples with a model, `size` tokens at a time; between two pieces of a completion the weights may change. models: the
    weights of each version. dead: it gives no more.
    """

    def __init__(self, size=2):
        self.hf, self.size = tiny(), size
        self.sampler, self.still, self.probes = HFSampler(self.hf), nullcontext(), []
        self.lock, self.pool, self.dead = threading.Lock(), ThreadPoolExecutor(1), False
        self.models = {}
        self.update(0)

    @property
    def version(self):
        return self.sampler.version

    def update(self, version):
        """Moves every weight at random."""
        with self.lock, torch.no_grad():
            g = torch.Generator().manual_seed(version)
            for p in self.hf.model.parameters():
                p.add_(0.05 * torch.randn(p.shape, generator=g))
            self.sampler.version = version
            self.models[version] = copy.deepcopy(self.hf.model.state_dict())

    def begin(self, so_far, seed, sampling):
        future = Future()
        self.pool.submit(self._piece, future, so_far, seed, sampling)
        return Job(future, lambda: so_far)

    def _piece(self, future, so_far, seed, sampling):
        if future.cancelled():
            return
        if self.dead:
            future.set_exception(SamplerError("the engine died"))
            return
        count, start = int(so_far.sampled.sum()), len(so_far.tokens)
        prompt = replace(so_far.prompt, tokens=tuple(so_far.tokens.tolist()))
        most = min(self.size, sampling.max_new_tokens - count)
        with self.lock:
            (new,) = self.sampler.generate([prompt], 1, replace(sampling, max_new_tokens=most, seed=(seed + count,)))
        columns = {
            name: torch.cat([getattr(so_far, name), getattr(new, name)[start:]]) for name in ("sampled", "logp", "version")
        }
        grown = replace(so_far, tokens=new.tokens, **columns)
        if new.stop == "length" and count + most < sampling.max_new_tokens:
            self.pool.submit(self._piece, future, grown, seed, sampling)
        else:
            future.set_result(replace(grown, stop=new.stop))


class InOrder(Curriculum):
    """The rows 0, 1, 2 ..."""

    def __init__(self):
        super().__init__([Pool(TASK, [Prompt("0", "say 0", (5,))], 0)])

    def take(self, k, step):
        self.position += k
        return [self.find(str(i)) for i in range(self.position - k, self.position)]

    def find(self, id):
        return Prompt(id, f"say {id}", (5,), {"number": int(id)})


class Talk:
    """Episodes of three turns; those of the first batch have one, so that weights change in the middle of all others."""

    tools = ()

    def __init__(self, row):
        self.number, self.turns = row["number"], 0

    async def start(self):
        return [{"role": "user", "content": f"say {self.number}"}]

    async def step(self, turn):
        self.turns += 1
        await self.act(turn)
        done = self.turns == (1 if self.number < P else 3)
        metrics = {"late": np.float64(1)} if self.number >= P else {}
        return Step([{"role": "user", "content": np.str_("go on")}], reward=len(turn["content"]), done=done, metrics=metrics)

    async def act(self, turn):
        """What takes the environment's time."""


@contextmanager
def playing(sampler, make=Talk, k=1, stream=None, timeout=PATIENCE, context=512, **sizes):
    """A source of groups of episodes. sampler: with its model as `hf`."""
    task = TaskConfig(max_turns=4, step_timeout=timeout)
    encoder = Encoder(sampler.hf.tokenizer, task)
    config = RolloutConfig(
        **{"num_prompts": P, "num_generations": G, "max_staleness": k, "max_completion_length": LONGEST} | sizes
    )
    with Episodes(sampler, sampler, encoder, context, task, make) as episodes:
        yield AsynchronousSource(stream or InOrder(), episodes, AlreadyScored(), config, SAMPLING)


def steps(source, sampler, count):
    """The rollouts of each step; after each the weights move on."""
    groups, found = iter(source), []
    for _ in range(count):
        batch = [next(groups) for _ in range(source.config.num_prompts)]
        found.append([rollout for group in batch for rollout in group.rollouts])
        oldest = [int(r.version[r.sampled].min()) for r in found[-1] if r.sampled.any()]
        assert not oldest or sampler.version - min(oldest) <= source.config.max_staleness
        sampler.update(sampler.version + 1)
    return found


def gaps(rollout, sampler, version):
    """|log mu - log pi| of each sampled token, with the weights of a version."""
    assert rollout.parent is None
    sampler.hf.model.load_state_dict(sampler.models[version])
    with torch.no_grad():
        logp = sampler.hf.model(input_ids=rollout.tokens[None]).logits[0, :-1].float().log_softmax(-1)
    places = rollout.sampled.nonzero()[:, 0]
    return (logp[places - 1, rollout.tokens[places]] - rollout.logp[places]).abs()


def exact(rollouts, sampler):
    """Each token has the likelihood of the weights of its version, and of no others. How many episodes met an update in a
    turn, and how many between turns alone.
    """
    within, across, worst, others = 0, 0, 0.0, []
    for rollout in rollouts:
        versions, turns = rollout.version[rollout.sampled], rollout.turn[rollout.sampled]
        assert (versions.diff() >= 0).all()
        parts = any(len(versions[turns == turn].unique()) > 1 for turn in turns.unique())
        within, across = within + parts, across + (not parts and len(versions.unique()) > 1)
        for version in versions.unique().tolist():
            gap = gaps(rollout, sampler, version)
            worst = max(worst, float(gap[versions == version].max()))
            others += gap[versions != version].tolist()
    print(f"{len(rollouts)} episodes: {within} met updates in a turn, {across} between; {worst:.1g}, {np.mean(others):.2g}")
    assert worst < 1e-4 and len(others) > 50 and np.mean(others) > 0.1
    return within, across


@pytest.mark.parametrize("k", [1, 2])
def test_each_token_has_the_likelihood_of_the_weights_that_sampled_it(k):
    sampler = Pieces()
    with playing(sampler, k=k) as source:
        found = steps(source, sampler, 5)
    rollouts = [rollout for step in found for rollout in step]
    assert [r.prompt.id for r in rollouts] == [str(i // G) for i in range(5 * P * G)]
    assert all(r.error is None and r.reward == sum(r.turn_rewards) for r in rollouts)
    assert [len(r.turn_rewards) for r in rollouts] == [1] * P * G + [3] * 4 * P * G
    within, _ = exact(rollouts, sampler)
    assert within > 0
    ages = [staleness(step, version) for version, step in enumerate(found)]
    assert ages[0] == 0 and 0 < max(ages) <= k


class Waits(Talk):
    """Row 2 waits before its last turn for somebody to let it go on."""

    go, there = threading.Event(), threading.Semaphore(0)

    async def act(self, turn):
        if self.number == 2 and self.turns == 1:
            Waits.there.release()
            while not Waits.go.is_set():
                await asyncio.sleep(0.01)


def test_a_slow_environment_stops_the_trainer_only_when_it_would_be_too_old():
    Waits.go, Waits.there = threading.Event(), threading.Semaphore(0)
    sampler = Pieces(size=LONGEST)
    with playing(sampler, Waits, k=2, num_prompts=1) as source:
        groups = iter(source)
        for version in (0, 1):  # the trainer goes on
            assert next(groups).prompt.id == str(version)
            if version == 0:
                assert all(Waits.there.acquire(timeout=PATIENCE) for _ in range(G))
            sampler.update(version + 1)
        late = []
        trainer = threading.Thread(target=lambda: late.append(next(groups)), daemon=True)
        trainer.start()
        trainer.join(0.3)
        assert trainer.is_alive() and not late  # now it waits: to leave a slow one out would favour what is quick
        Waits.go.set()
        trainer.join(PATIENCE)
        first, second = late[0].rollouts
    for rollout in (first, second):
        versions, turns = rollout.version[rollout.sampled], rollout.turn[rollout.sampled]
        assert versions.tolist() == [0 if turn == 0 else 2 for turn in turns.tolist()] and turns.max() == 2
    first_turns = sum(int((r.turn == 0).sum()) for r in (first, second))
    tokens = sum(int(r.sampled.sum()) for r in (first, second))
    assert staleness([first, second], 2) == pytest.approx(2 * first_turns / tokens) and in_parts([first, second]) == 1


class Breaks(Talk):
    """Row 2 falls over after its first turn, row 4 hangs there, row 6 cannot begin."""

    def __init__(self, row):
        super().__init__(row)
        if self.number == 6:
            raise ValueError("no such room")

    async def act(self, turn):
        if self.number == 2:
            raise RuntimeError("it fell over")
        if self.number == 4:
            leap(asyncio.get_running_loop())
            await asyncio.sleep(1e6)


def test_environments_that_raise_or_hang_are_data():
    sampler = Pieces()
    with playing(sampler, Breaks) as source:
        found = [rollout for step in steps(source, sampler, 5) for rollout in step]
    why = {2: "RuntimeError: it fell over", 4: "TimeoutError: timed out", 6: "ValueError: no such room"}
    for rollout in found:
        number = int(rollout.prompt.id)
        assert (rollout.error is None) == (number not in why) == (rollout.reward is not None)
        assert why.get(number, "") in (rollout.error or "") and rollout.sampled.any() == (number != 6)


def test_a_resumed_run_keeps_what_ended_and_begins_the_rest_again(tmp_path):
    """Of two episodes of a row one has ended, when the run is saved."""

    class Halts(Talk):
        made, free = 0, threading.Event()

        async def act(self, turn):
            if self.number == 3 and self.turns == 2:
                Halts.made += 1
                while Halts.made != 1 and not Halts.free.is_set():
                    await asyncio.sleep(0.01)

    sampler = Pieces()
    with playing(sampler, Halts) as source:
        first = steps(source, sampler, 1)
        while sum(job.done() for flight in source.flights for job in flight.jobs) < 2 * G - 1:
            threading.Event().wait(0.01)
        torch.save(source.state_dict(), tmp_path / "state.pt")
        kept = [job.so_far for flight in source.flights for job in flight.jobs]
    ended = [rollout for rollout in kept if rollout.stop]
    assert len(ended) == 2 * G - 1 and sum(not rollout.stop and not rollout.sampled.any() for rollout in kept) == 1
    Halts.free.set()
    stream = InOrder()
    with playing(sampler, Halts, stream=stream) as resumed:
        resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        assert stream.position == 2 * P
        rest = steps(resumed, sampler, 3)
    assert [r.prompt.id for step in first + rest for r in step] == [str(i // G) for i in range(4 * P * G)]
    again = {(r.prompt.id, tuple(r.tokens.tolist())): r for r in rest[0]}
    for rollout in ended:
        other = again[rollout.prompt.id, tuple(rollout.tokens.tolist())]
        assert other.prompt.tokens == rollout.prompt.tokens != (5,)
        assert torch.equal(other.version, rollout.version) and torch.equal(other.logp, rollout.logp)
        assert other.reward == rollout.reward and other.turn_rewards == rollout.turn_rewards
        assert other.reward_parts == rollout.reward_parts and other.dialogue == rollout.dialogue
    (begun_again,) = [r for r in rest[0] if all(r.tokens.tolist() != one.tokens.tolist() for one in ended)]
    assert begun_again.error is None and set(begun_again.version[begun_again.sampled].tolist()) == {1}


def test_what_is_dropped_is_ended():
    class Counts(Talk):
        there, ended = threading.Semaphore(0), threading.Semaphore(0)

        async def act(self, turn):
            if self.number >= P:
                try:
                    Counts.there.release()
                    await asyncio.sleep(1e6)
                finally:
                    Counts.ended.release()

    sampler = Pieces(size=LONGEST)
    with playing(sampler, Counts, k=2, timeout=1e6) as source:
        steps(source, sampler, 1)
        assert all(Counts.there.acquire(timeout=PATIENCE) for _ in range(2 * P * G))
        source.drop(source.state_dict())
        assert not source.state_dict()["flights"]
        assert all(Counts.ended.acquire(timeout=PATIENCE) for _ in range(2 * P * G))
