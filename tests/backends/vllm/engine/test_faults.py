"""The engine killed, hung or starved in mid-run: started again, and nothing is lost."""

import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import SAMPLED
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling
from tests.backends.vllm.engine.servers import change, policy_of, prompts, served, tokens
from tests.backends.vllm.engines import until

LONG = Sampling(100, seed=7)


@pytest.fixture(scope="module")
def engine():
    policy = policy_of("moe")
    with served(policy, timeout=15.0) as sampler:
        change(policy.model.model, 0.05, 1)
        sampler.load(PolicyWeights(policy, 1))
        yield policy, sampler, tokens(sampler.generate(prompts(), 8, LONG))


def test_the_engine_counts_its_tokens(engine):
    """A slow engine counts on, and a hung one does not."""
    _, sampler, _ = engine

    def counted():
        return sum(map(float, SAMPLED.findall(sampler.server.call("/metrics"))))

    before, rollouts = counted(), sampler.generate(prompts(), 2, LONG)
    assert counted() - before == sum(int(rollout.sampled.sum()) for rollout in rollouts) > 0


def test_killed_while_it_samples(engine):
    """The completions are the ones of the weights of now, not of those that the server started with."""
    policy, sampler, expected = engine
    process = sampler.server.process
    killer = threading.Timer(0.3, os.killpg, (process.pid, signal.SIGKILL))
    killer.start()
    rollouts = sampler.generate(prompts(), 8, LONG)
    assert tokens(rollouts) == expected
    assert "started again" in sampler.said[-2] and "is back" in sampler.said[-1] and sampler.server.process is not process
    sampler.check(PolicyWeights(policy, sampler.version))


def worker_of(server):
    """The process that holds the engine's weights: of the server's children the largest."""
    group = os.getpgid(server.process.pid)
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and in_group(path, group)]
    return max(pids, key=lambda pid: int((Path("/proc") / str(pid) / "statm").read_text().split()[1]))


def in_group(path, group):
    try:
        return int(path.joinpath("stat").read_text().rpartition(")")[2].split()[2]) == group
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_out_of_memory(engine):
    """It may have no more memory than it has, and is then asked for more than before."""
    _, sampler, _ = engine
    process, worker = sampler.server.process, worker_of(sampler.server)
    _, hard = resource.prlimit(worker, resource.RLIMIT_AS)
    used = int((Path("/proc") / str(worker) / "statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(worker, resource.RLIMIT_AS, (used, hard))
    many = [Prompt(str(i), "", tuple(2 + (i * j) % 12 for j in range(1, 25))) for i in range(1, 41)]
    rollouts = sampler.generate(many, 6, LONG)
    assert len(rollouts) == 240 and all(int(r.sampled.sum()) == 100 for r in rollouts)
    assert "started again" in sampler.said[-2] and sampler.server.process is not process
    print(sampler.said[-2:])


def test_one_that_cannot_start_says_why(engine):
    _, sampler, _ = engine
    command = sampler.server.command
    sampler.server.command = [*command, "--max-model-len", "1000000"]
    with pytest.raises(EngineError, match=r"vLLM ended with status.*max_model_len"):
        sampler.server.start()
    sampler.server.command = command
    sampler.server.start()


def test_no_process_outlives_the_trainer(engine):
    """The server ends with the pipe that its parent held."""
    _, sampler, _ = engine
    process = sampler.server.process
    process.stdin.close()
    until(lambda: process.poll() is not None)
    process.stdin = open(os.devnull, "wb")  # noqa: SIM115
