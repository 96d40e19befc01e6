import os
import resource
import signal
from contextlib import contextmanager

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.data.processes import kill, spawn
from gspo.rewards.graders import BATCH, SINGLY, NextResults, RewardInput
from gspo.rewards.worker import MEMORY
from tests.rewards.tools import START, ended, run


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    with run(tmp_path, START + "    print(rewards.score([rollout('a')])[0].reward)") as process:
        assert process.communicate()[0].split() == ["begin", "1.0"]


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_no_worker_outlives_its_parent(tmp_path):
    with run(
        tmp_path,
        START + "    rewards.wait(); print(rewards.workers[0].process.pid, flush=True); time.sleep(60)",
    ) as p:
        p.stdout.readline()
        worker = int(p.stdout.readline())
        p.send_signal(signal.SIGKILL)
    assert ended(worker)


@contextmanager
def working(*names):
    process, connection = spawn("gspo.rewards.worker", (list(names), RewardConfig(timeout=5.0), TaskConfig()))
    try:
        yield process, connection
    finally:
        kill(process)


def test_it_says_that_it_is_ready_and_streams_each_result():
    with working("exact") as (_, connection):
        assert connection.recv() is None
        connection.send(("exact", [RewardInput("?", completion, "", {"answer": "7"}) for completion in "78"], BATCH))
        assert [connection.recv() for _ in range(3)] == [
            NextResults(SINGLY),  # how it goes about it
            NextResults(SINGLY, [(1.0, None)]),
            NextResults(SINGLY, [(0.0, None)]),
        ]
        connection.send_bytes(b"no pickle")
        assert connection.recv()[0] == "unreadable"
        connection.send(("exact", [RewardInput("?", "7", "", {"answer": "7"})], BATCH))  # it goes on
        assert [connection.recv().results for _ in range(2)] == [(), [(1.0, None)]]
        connection.close()


def test_it_says_why_it_cannot_begin():
    with working("exact", "tests.rewards.graders:lenght") as (_, connection):
        assert "did you mean length?" in connection.recv()


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs prlimit")
@pytest.mark.parametrize(("name", "limited"), [("exact", True), ("tests.rewards.graders:length", False)])
def test_the_memory_of_our_own_scorers_is_limited(name, limited):
    with working(name) as (process, connection):
        assert connection.recv() is None
        assert (resource.prlimit(process.pid, resource.RLIMIT_AS)[0] == MEMORY) is limited
