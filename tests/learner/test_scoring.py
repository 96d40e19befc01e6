"""Readings come in the order of the completions, whatever micro-batches they were read in."""

import pytest
import torch

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.learner.memory import MicroBatches
from gspo.learner.scoring import read
from gspo.learner.weights import PolicyWeights
from gspo.rollout.credit import completion_of
from gspo.types import Prompt, Sampling
from tests import tiny_run
from tests.bigram import Bigram
from tests.learner.cases import completions


@pytest.mark.parametrize("max_tokens", [1, 9, 10_000])
def test_the_order_is_that_of_the_completions(max_tokens):
    batch = completions()
    whole = read(Bigram(), batch, MicroBatches(10_000))
    parts = read(Bigram(), batch[::-1], MicroBatches(max_tokens))
    assert [len(one.logp) for one in whole] == [len(completion.logp_old) for completion in batch]
    for one, other in zip(whole, parts[::-1]):
        assert torch.equal(one.logp, other.logp) and not one.logp.requires_grad


def test_routes_are_told_where_they_are_asked_for():
    policy = HFPolicy(tiny_run.model())
    rows = [one for one in completions() if int(one.tokens.max()) < 12]
    plain, routed = (read(policy, rows, MicroBatches(30), routing=routing) for routing in (False, True))
    for one, other, completion in zip(plain, routed, rows):
        assert one.routes is None and other.routes.shape == (len(completion.tokens), 2, 2)
        torch.testing.assert_close(one.logp, other.logp)


def test_weights_are_read_with_the_experts_that_sampled_where_they_are_known():
    model = tiny_run.model()
    weights = PolicyWeights(HFPolicy(model), 3)
    prompts = [Prompt(str(i), "", (3 + i, 4, 5)) for i in range(3)]
    rollouts = HFSampler(model).generate(prompts, 2, Sampling(6, routes=True))
    known = [completion_of(rollout, 0.0) for rollout in rollouts]
    for one, completion in zip(weights.read(known), known):
        torch.testing.assert_close(one.logp, completion.logp_mu, rtol=1e-4, atol=1e-5)
        assert torch.equal(one.routes[:-1], completion.routes[:-1])
