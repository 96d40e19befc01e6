"""Weights broadcast to real engines: what they hold and sample is what they would hold and sample through the folder."""

import pytest

from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer
from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import change, gaps, policy_of, prompts, served

LONG = Sampling(60, seed=7)


def tokens(rollouts):
    return [rollout.tokens.tolist() for rollout in rollouts]


def likelihoods(rollouts):
    return [rollout.logp.tolist() for rollout in rollouts]


def held(sampler):
    """Checksums of all that an engine's workers hold."""
    return [member.engine.call("/weight_checker", {"action": "checksum"}) for member in sampler.fleet.members]


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_broadcast_weights_are_those_of_the_folder(name):
    """Bit by bit, and token by token, in one engine after the other."""
    policy, found = policy_of(name), []
    with served(policy) as sampler:
        ways = [FolderTransfer(sampler.exchange, False), BroadcastTransfer(policy.device)]
        for version in range(1, 7):
            if version % 2:
                change(policy.model.model, 0.05, version)
            sampler.transfer = ways[version % 2]
            sampler.load(PolicyWeights(policy, version))
            sampled = sampler.generate(prompts(), 4, LONG)
            found.append((held(sampler), tokens(sampled), likelihoods(sampled)))
            assert float(gaps(sampler, policy, version).max()) < 1e-4 and not sampler.said
    assert found[0] == found[1] and found[2] == found[3] and found[4] == found[5]
    assert found[0] != found[2] != found[4]
