import os
import pickle
import resource
import signal
import time
from contextlib import contextmanager

import pytest

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.graders import BATCH, SINGLY, RewardInput
from gspo.rewards.scorer import Rewards
from gspo.workers.json_codec import unpacked
from gspo.workers.processes import kill, spawn
from tests.data.tools import rollout
from tests.patience import PATIENCE
from tests.rewards.tools import START, children, ended, run


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    with run(tmp_path, START + "    print(rewards.score([rollout('a')])[0].reward)") as process:
        assert process.communicate()[0].split() == ["begin", "1.0"]


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_no_worker_outlives_its_parent(tmp_path):
    with run(
        tmp_path,
        START + "    rewards.wait(); print(rewards.workers[0].process.pid, flush=True); time.sleep(10_000)",
    ) as p:
        p.stdout.readline()
        worker = int(p.stdout.readline())
        p.send_signal(signal.SIGKILL)
    assert ended(worker)


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_program_of_a_grader_outlives_the_trainer(tmp_path, end):
    path = tmp_path / "pids"
    lines = f"""
    config = RewardConfig(functions=["tests.rewards.graders:leaves_children"], timeout=10_000)
    rewards.close()
    with Rewards(config, TaskConfig()) as rewards:
        rewards.score([rollout("a", path={str(path)!r}), rollout("b", path={str(path)!r})])
        print("scored", flush=True)
        rewards.score([rollout("hang", path={str(path)!r})])
    """
    with run(tmp_path, START + lines) as process:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["begin", "scored"]
        while len(path.read_text().split()) < 3:
            time.sleep(0.01)
        process.send_signal(end)
    assert all(ended(int(line)) for line in path.read_text().split())


@contextmanager
def working(*names):
    request = list(names), RewardConfig(timeout=PATIENCE), TaskConfig(), CodeConfig()
    process, connection = spawn("gspo.rewards.worker", request)
    try:
        yield process, connection
    finally:
        kill(process)


def heard(connection):
    return unpacked(connection.receive(PATIENCE))


def ask(connection, number, name, *completions):
    rows = [RewardInput("?", completion, "", {"answer": "7"}) for completion in completions]
    connection.send(pickle.dumps((number, pickle.dumps((name, rows, BATCH)))))


def test_it_says_that_it_is_ready_and_streams_each_result():
    with working("exact") as (_, connection):
        assert heard(connection)[:3] == ["ready", "", ""]
        ask(connection, 5, "exact", "7", "8")
        assert [heard(connection) for _ in range(3)] == [
            ["results", 5, SINGLY, [], "", False, False],  # how it goes about it
            ["results", 5, SINGLY, [[1.0, None]], "", False, False],
            ["results", 5, SINGLY, [[0.0, None]], "", False, False],
        ]
        connection.send(pickle.dumps((6, b"no pickle")))
        assert heard(connection)[:2] == ["unreadable", 6]
        ask(connection, 7, "exact", "7")  # it goes on
        assert [heard(connection)[3] for _ in range(2)] == [[], [[1.0, None]]]
        connection.close()


def test_it_says_why_it_cannot_begin():
    with working("exact", "tests.rewards.graders:lenght") as (_, connection):
        assert "did you mean length?" in heard(connection)[1]


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
@pytest.mark.parametrize("name", ["exact", "tests.rewards.graders:length"])
def test_the_memory_of_every_worker_is_limited(name):
    with working(name) as (process, connection):
        assert heard(connection)[:3] == ["ready", "", ""]
        (worker,) = children(process.pid)
        assert resource.prlimit(worker, resource.RLIMIT_DATA)[0] == 8 * 2**30
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA)[0] != 8 * 2**30  # nor is its keeper


@pytest.mark.skipif(not os.path.exists("/proc"), reason="Linux counts this memory")
def test_a_reward_that_takes_too_much_fails_alone():
    config = RewardConfig(functions=["tests.rewards.graders:eats_memory"], timeout=PATIENCE, memory=0.5)
    with Rewards(config, TaskConfig()) as rewards:
        scored = rewards.score([rollout("1"), rollout("900"), rollout("2")])
    assert [r.reward for r in scored] == [1.0, None, 1.0] and "MemoryError" in scored[1].error
