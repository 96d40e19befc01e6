"""Weights broadcast to real engines: what they hold and sample is what they would hold and sample through the folder."""

import json
import os
import signal
import time

import pytest
import torch

from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer
from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import ENGINE_ARGS, change, gaps, policy_of, prompts, served, tokens
from tests.backends.vllm.engine.test_ranks import fill, run

LONG = Sampling(60, seed=7)


def held(sampler):
    """Checksums of all that the engines' workers hold."""
    return [member.engine.call("/weight_checker", {"action": "checksum"}) for member in sampler.fleet.members]


def alike(sampler, policy, ways, versions):
    """For each pair of versions, of the same weights by either way: whether all is the same, bit by bit."""
    found = []
    for version in versions:
        if version % 2:
            change(policy.model.model, 0.05, version)
        sampler.transfer = ways[version % 2]
        sampler.load(PolicyWeights(policy, version))
        sampled = sampler.generate(prompts(), 4, LONG)
        found.append((held(sampler), tokens(sampled), [rollout.logp.tolist() for rollout in sampled]))
        assert float(gaps(sampler, policy, version).max()) < 1e-4 and not sampler.said
    assert all(a != b for a, b in zip(found[1:-1:2], found[2::2]))  # each change was seen
    return [a == b for a, b in zip(found[::2], found[1::2])]


class Interrupted(PolicyWeights):
    """Something happens before the second layer."""

    def __init__(self, policy, version, happens):
        super().__init__(policy, version)
        self.happens = happens

    def layers(self):
        for number, layer in enumerate(super().layers()):
            if number == 1:
                self.happens()
            yield layer


def test_one_engine():
    """A dense model with a tied head; then one that is half loaded, and one that is killed."""
    policy = policy_of("dense")
    with served(policy, weight_transfer="broadcast", timeout=30.0) as sampler:
        sent = sampler.transfer
        assert type(sent) is BroadcastTransfer
        assert alike(sampler, policy, [FolderTransfer(sampler.weight_dir, False), sent], range(1, 7)) == [True] * 3

        sampler.transfer = sent
        sampler.counts()
        sampler.load(PolicyWeights(policy, 7))
        size = sum(x.numel() * 4 for layer in policy.model.layers() for x in layer.values())
        counts = sampler.counts()
        assert size < counts["sync/bytes"] < 1.1 * size and counts["sync/copies"] == 2
        expected = tokens(sampler.generate(prompts(), 4, LONG))

        def fails():
            raise MemoryError

        with pytest.raises(MemoryError):
            sampler.load(Interrupted(policy, 8, fails))
        begin = time.monotonic()
        sampler.load(PolicyWeights(policy, 9))  # the same weights, and the same engine: it was half loaded
        assert tokens(sampler.generate(prompts(), 4, LONG)) == expected and not sampler.said
        print(json.dumps({"after giving up": time.monotonic() - begin}))

        process, begin = sampler.server.process, time.monotonic()
        change(policy.model.model, 0.05, 9)
        sampler.load(Interrupted(policy, 10, lambda: os.killpg(process.pid, signal.SIGKILL)))
        assert sampler.server.process is not process and len(sampler.said) == 2
        assert float(gaps(sampler, policy, 10).max()) < 1e-4
        print(json.dumps({"killed in the middle, back after": time.monotonic() - begin}))

        expected, process = tokens(sampler.generate(prompts(), 4, LONG)), sampler.server.process
        os.killpg(process.pid, signal.SIGKILL)  # while it samples: the weights come from what was kept
        change(policy.model.model, 0.05, 10)
        assert tokens(sampler.generate(prompts(), 4, LONG)) == expected and sampler.server.process is not process


@pytest.mark.slow
def test_an_engine_that_sleeps_while_the_learner_updates():
    """vLLM's scheduler and its states are real; a worker on a CPU keeps its memory. Of a mixture."""
    policy = policy_of("moe")
    with served(policy, weight_transfer="broadcast") as sampler:
        assert alike(sampler, policy, [FolderTransfer(sampler.weight_dir, False), sampler.transfer], range(1, 3)) == [True]
        sampler.load(PolicyWeights(policy, 3))
        expected = tokens(sampler.generate(prompts(), 4, LONG))
        sampler.sleep_level = 2
        for version in (4, 5):
            sampler.rest()
            answer = sampler.server._request("GET", "/is_sleeping", 10.0)
            assert answer.json() == {"is_sleeping": True} and not sampler.fleet.serving
            sampler.load(PolicyWeights(policy, version))
            assert sampler.server._request("GET", "/is_sleeping", 10.0).json() == {"is_sleeping": False}
            assert tokens(sampler.generate(prompts(), 4, LONG)) == expected and not sampler.said


@pytest.mark.slow
def test_two_engines_of_two_workers_each():
    """A mixture, its experts apart on the way: tensor parallelism takes its part of each."""
    policy = policy_of("moe")
    arguments = ENGINE_ARGS | {"tensor_parallel_size": 2}
    with served(policy, engines=2, engine_args=arguments, weight_transfer="broadcast", batch_size=16) as sampler:
        ways = [FolderTransfer(sampler.weight_dir, False), sampler.transfer]
        assert alike(sampler, policy, ways, range(1, 5)) == [True] * 2
        sampler.transfer = ways[1]
        sampler.counts()
        sampler.load(PolicyWeights(policy, 5))
        assert sampler.counts()["sync/copies"] == 1 + 2 * 2 and len(sampler.fleet.serving) == 2


@pytest.mark.slow
def test_runs_are_the_same_by_either_way_and_on_two_ranks(tmp_path):
    """Every completion, and the weights: bit by bit in one process, but for rounding on two ranks."""
    fill(tmp_path)
    folder, weights, metrics = run(tmp_path, "folder", "--sampler.weight_transfer=folder")
    sent, same, others = run(tmp_path, "broadcast", "--sampler.weight_transfer=broadcast")
    assert folder == sent and len(sent) == 96
    assert weights.keys() == same.keys() and all(torch.equal(weights[name], same[name]) for name in weights)
    for one, other in zip(metrics, others):
        assert {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)} <= {
            name for name in one if name.startswith(("time/", "tokens_per", "sync/", "memory"))
        }
    ranks = "--scale.ranks=2", "--scale.expert_parallel=2", "--sampler.engines=2", "--sampler.weight_transfer=broadcast"
    two, shards, metrics = run(tmp_path, "two", *ranks)
    assert two == folder and max(float((weights[name] - shards[name]).abs().max()) for name in weights) < 1e-6
    assert all(line["engines/serving"] == 2 and line["sync/copies"] == 3 for line in metrics)
