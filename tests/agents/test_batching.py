import threading

import pytest
import torch

from gspo.agents.batching import Batching
from gspo.backends.hf.sampler import HFSampler
from gspo.types import Prompt, Rollout, Sampling
from tests import tiny_run
from tests.patience import PATIENCE

PROMPTS = [Prompt(f"p{i}", "", (2 + i, 3, 4)) for i in range(6)]
SAMPLING = Sampling(max_new_tokens=6)


class Counted(HFSampler):
    """The embedded sampler, which notes its batches and may be made to wait or to fail."""

    def __init__(self, model):
        super().__init__(model)
        self.batches, self.go, self.error = [], threading.Event(), None
        self.go.set()

    def generate(self, prompts, *rest):
        self.batches.append(len(prompts))
        self.go.wait(PATIENCE)
        if self.error:
            raise self.error
        return super().generate(prompts, *rest)


@pytest.fixture(scope="module")
def model():
    return tiny_run.model()


@pytest.fixture
def batching(model):
    made = Batching(Counted(model))
    yield made
    made.close()


def held(batching):
    """A completion that is being sampled, until the sampler may go on."""
    batching.sampler.go.clear()
    job = batching.begin(Rollout.begun(PROMPTS[0]), 0, SAMPLING)
    while not batching.sampler.batches:
        threading.Event().wait(0.001)
    return job


def test_those_that_come_while_it_samples_are_sampled_together(batching):
    jobs = [held(batching)]
    jobs += [batching.begin(Rollout.begun(prompt), i, SAMPLING) for i, prompt in enumerate(PROMPTS[1:], 1)]
    batching.sampler.go.set()
    found = [job.result() for job in jobs]
    assert [one.prompt.id for one in found] == [prompt.id for prompt in PROMPTS]
    assert batching.sampler.batches == [1, 5]


def test_a_completion_depends_on_its_seed_and_not_on_its_batch(batching):
    alone = batching.begin(Rollout.begun(PROMPTS[0]), 7, SAMPLING).result()
    seeds = (7, 8, 7)
    found = [job.result() for job in [batching.begin(Rollout.begun(PROMPTS[0]), seed, SAMPLING) for seed in seeds]]
    assert torch.equal(found[0].tokens, alone.tokens) and torch.equal(found[2].tokens, alone.tokens)
    assert not torch.equal(found[1].tokens, alone.tokens)


def test_other_settings_are_another_batch(batching):
    first = held(batching)
    jobs = [batching.begin(Rollout.begun(PROMPTS[1]), 1, Sampling(max_new_tokens=n)) for n in (1, 2, 1)]
    batching.sampler.go.set()
    assert [int(job.result().sampled.sum()) for job in jobs] == [1, 2, 1] and first.result()
    assert batching.sampler.batches == [1, 2, 1]


def test_what_is_cancelled_before_its_turn_in_a_batch_is_not_sampled(batching):
    first = held(batching)
    jobs = [batching.begin(Rollout.begun(PROMPTS[1]), 1, Sampling(max_new_tokens=n)) for n in (1, 2)]
    sample = batching.sampler.generate

    def generate(*arguments):
        if len(batching.sampler.batches) == 1:
            jobs[1].cancel()  # what an environment does that gives a turn up
        return sample(*arguments)

    batching.sampler.generate = generate
    batching.sampler.go.set()
    assert first.result() and jobs[0].result() and jobs[1].future.cancelled()
    assert batching.begin(Rollout.begun(PROMPTS[1]), 1, SAMPLING).result() and batching.sampler.batches == [1, 1, 1]


def test_whoever_waits_hears_of_an_error_and_the_next_is_served(batching):
    batching.sampler.error = ValueError("no room")
    with pytest.raises(ValueError, match="no room"):
        batching.begin(Rollout.begun(PROMPTS[0]), 0, SAMPLING).result()
    batching.sampler.error = None
    assert batching.begin(Rollout.begun(PROMPTS[0]), 0, SAMPLING).result().stop == "length"


def test_weights_stand_still_while_it_samples_and_it_waits_for_them(batching):
    with batching.still:
        job = batching.begin(Rollout.begun(PROMPTS[0]), 0, SAMPLING)
        assert not job.done()
        threading.Event().wait(0.05)
        assert not batching.sampler.batches
    assert job.result().stop == "length"
