"""Two real engines as one: what they sample, and one that is killed."""

import json
import os
import signal
import threading
import time

import pytest

from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import change, gaps, policy_of, prompts, served

LONG = Sampling(100, seed=7)


@pytest.fixture(scope="module")
def fleet():
    policy = policy_of("moe")
    with served(policy, engines=2, timeout=60.0, batch_size=16) as sampler:
        yield policy, sampler


def tokens(rollouts):
    return [rollout.tokens.tolist() for rollout in rollouts]


def likelihoods(rollouts):
    return [value for rollout in rollouts for value in rollout.logp.tolist()]


def test_two_sample_what_one_does(fleet):
    """Which engine samples a completion changes nothing beyond rounding, after a weight update too."""
    policy, sampler = fleet
    for version in (1, 2):
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


def test_one_is_killed_while_they_sample(fleet):
    """The other goes on with what it was asked for; it comes back, proven, with the weights of now."""
    policy, sampler = fleet
    expected = tokens(sampler.generate(prompts(), 8, LONG))
    sampler.counts()
    victim = sampler.fleet.members[1]
    process, killed = victim.engine.process, []

    def kill():
        os.killpg(process.pid, signal.SIGKILL)
        killed.append(time.monotonic())

    threading.Timer(0.3, kill).start()
    rollouts = sampler.generate(prompts(), 8, LONG)
    finished = time.monotonic()
    assert tokens(rollouts) == expected
    counts, moved = sampler.counts(), victim.evicted_at - killed[0]
    assert counts["engines/serving"] == 1 and counts["engines/evicted"] == 1 and counts["engines/requests_retried"] >= 1
    change(policy.model.model, 0.05, 3)
    sampler.load(PolicyWeights(policy, 3))  # it does not wait for the one that is being started
    assert len(sampler.fleet.serving) == 1
    while "is back" not in sampler.said[-1]:
        assert time.monotonic() < finished + 300
        time.sleep(0.1)
    back = time.monotonic() - killed[0]
    assert "is left out and started again" in sampler.said[-2] and len(sampler.fleet.serving) == 2
    assert sampler.check(PolicyWeights(policy, 3)) < 1e-5 and victim.engine.process is not process
    retried = counts["engines/requests_retried"]
    print(json.dumps({"retried": retried, "left out after": moved, "batch after": finished - killed[0],
                      "back after": back}))  # fmt: skip
