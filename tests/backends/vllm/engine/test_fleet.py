"""Two real engines as one: what they sample, one that is killed, and a whole run that goes on."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.vllm.engine.servers import ENGINE_ARGS, MOE, PYTHON, change, gaps, policy_of, prompts, served
from tests.tiny_run import PIECES, ROWS, likes_a, settings

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


@pytest.mark.slow
def test_a_run_goes_on_when_an_engine_is_killed(tmp_path):
    """Every step has the completions that it would have had."""
    folders = []
    for name, engines, kills in (("one", 1, False), ("two", 2, True)):
        folder = tmp_path / name
        if kills:
            threading.Thread(target=kill_one, args=(folder,), daemon=True).start()
        tiny = build_tiny(MOE, longest_match_tokenizer(PIECES))
        config = settings(
            folder, sampler={"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS, "engines": engines},
            train={"steps": 6}, eval={"every": 0},
        )  # fmt: skip
        gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config)
        folders.append(folder)
    one, two = ([json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in folders)
    assert [line["step"] for line in two] == [1, 2, 3, 4, 5, 6]
    assert sum(line["engines/evicted"] for line in two) == 1 and [line["engines/serving"] for line in one] == [1] * 6
    assert all(line["mismatch/kl"] < 1e-8 for line in two)
    rollouts = [[json.loads(line)["token_ids"] for line in (f / "rollouts.jsonl").read_text().splitlines()] for f in folders]
    same = [a == b for a, b in zip(*rollouts)]
    print(json.dumps({"replies": len(same), "equal": sum(same)}))
    assert len(same) == 6 * 32 and all(same)
    events = (folders[1] / "events.jsonl").read_text()
    assert "is left out and started again" in events
    assert (folders[1] / "vllm_0.log").exists() and (folders[1] / "vllm_1.log").exists()


def kill_one(folder):
    """Kills a server of the run once it has done two steps."""
    while not (folder / "metrics.jsonl").exists() or len((folder / "metrics.jsonl").read_text().splitlines()) < 2:
        time.sleep(0.02)
    os.killpg(servers_of(os.getpid())[-1], signal.SIGKILL)


def servers_of(parent):
    """The process groups of this process's servers, the youngest last: numbers of processes begin anew."""
    stats = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                stats[int(path.name)] = path.joinpath("stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
    found = [pid for pid, stat in stats.items() if int(stat[1]) == parent and int(stat[2]) == pid]
    return sorted(found, key=lambda pid: int(stats[pid][19]))
