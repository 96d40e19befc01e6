"""Two real engines as one."""

import pytest

from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import change, gaps, policy_of, prompts, served, tokens

LONG = Sampling(100, seed=7)


def likelihoods(rollouts):
    return [value for rollout in rollouts for value in rollout.logp.tolist()]


def test_two_sample_what_one_does():
    """Which engine samples a completion changes nothing beyond rounding, after a weight update too."""
    policy = policy_of("moe")
    with served(policy, engines=2, timeout=60.0, batch_size=16) as sampler:
        for version in (1, 2):
            sample_alike(policy, sampler, version)


def sample_alike(policy, sampler, version):
    change(policy.model.model, 0.05, version)
    sampler.load(PolicyWeights(policy, version))
    assert sampler.fleet.counts() == {"engines/serving": 2, "engines/evicted": 0, "engines/requests_retried": 0}
    both = sampler.generate(prompts(), 8, LONG)
    first, second = sampler.fleet.members
    alone = []
    for member in (first, second):
        sampler.fleet.members = [member]
        alone.append(sampler.generate(prompts(), 8, LONG))
    sampler.fleet.members = [first, second]
    assert tokens(both) == tokens(alone[0]) == tokens(alone[1])
    assert likelihoods(both) == pytest.approx(likelihoods(alone[0]), abs=1e-4)
    assert float(gaps(sampler, policy, version).max()) < 1e-4
