import os
import pickle
import resource
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.graders import BATCH, SINGLY, RewardInput
from gspo.rewards.scorer import Rewards
from gspo.workers import supervisor
from gspo.workers.processes import Process
from tests.data.tools import rollout
from tests.patience import PATIENCE
from tests.rewards.tools import START, ended, run
from tests.sandbox.boxes import box_of
from tests.sandbox.conftest import folder_of_all

__all__ = ["folder_of_all"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
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
        while len(path.read_text().split()) < 6:
            time.sleep(0.01)
        process.send_signal(end)
    assert all(ended(int(line)) for line in path.read_text().split())


def descendants(parent):
    children = supervisor._children(parent)
    return children + [one for child in children for one in descendants(child)]


def burns(pid):
    """Whether a process is a test of a sandbox that has had the processor."""
    with suppress(OSError):
        seconds = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"runner.main()" in words and not supervisor._children(pid) and seconds > 0.1


@pytest.mark.parametrize("sandbox", ["bwrap", "landlock", "none"])
def test_nothing_is_left_of_a_program_whose_trainer_is_killed(tmp_path, monkeypatch, folder_of_all, sandbox):
    box_of(sandbox)
    lines = f"""
    from gspo.config.rewards import CodeConfig
    config = RewardConfig(functions=["code"], timeout=10_000)
    rewards.close()
    text = "```python\\nopen('f', 'w').close()\\nwhile True: pass\\n```"
    code = CodeConfig(sandbox={sandbox!r}, cpu_seconds=1000, total_cpu_seconds=1000)
    with Rewards(config, TaskConfig(), code=code) as rewards:
        rewards.score([rollout(text, tests=[{{"input": "", "output": "1"}}])])
    """
    monkeypatch.setenv("TMPDIR", str(folder_of_all))
    with run(tmp_path, START + lines) as process:
        assert process.stdout.readline().strip() == "begin"
        while not any(map(burns, descendants(process.pid))):
            assert process.poll() is None
            time.sleep(0.05)
        started = descendants(process.pid)
        process.kill()
    assert all(map(ended, started))
    assert list(folder_of_all.iterdir()) == []


@contextmanager
def working(*names):
    request = list(names), RewardConfig(timeout=PATIENCE), TaskConfig(), CodeConfig()
    process = Process("gspo.rewards.worker", request)
    try:
        yield process
    finally:
        process.kill()


def test_it_says_that_it_is_ready_limits_its_memory_and_streams_each_result():
    with working("exact", "tests.rewards.graders:raises") as process:
        raises = "tests.rewards.graders:raises"
        problem, notice, signatures = process.receive(PATIENCE)
        assert (problem, notice) == ("", "")
        assert signatures == {"exact": [(SINGLY,), False, ()], raises: [[BATCH, SINGLY], False, ()]}
        (worker,) = supervisor._children(process.popen.pid)
        assert resource.prlimit(worker, resource.RLIMIT_DATA)[0] == 8 * 2**30
        assert resource.prlimit(process.popen.pid, resource.RLIMIT_DATA)[0] != 8 * 2**30  # nor is its supervisor's
        rows = [RewardInput("?", completion, "", {"answer": "7"}) for completion in ("7", "x")]
        process.send(pickle.dumps(("exact", rows, SINGLY)))
        assert [process.receive(PATIENCE) for _ in range(2)] == [["results", [[1.0, None]]], ["results", [[0.0, None]]]]
        process.send(b"no pickle")
        assert process.receive(PATIENCE)[0] == "unreadable"
        process.send(pickle.dumps((raises, rows, BATCH)))  # it goes on
        assert process.receive(PATIENCE) == ["failed", "ValueError: could not convert string to float: 'x'", False]


def test_it_says_why_it_cannot_begin():
    with working("exact", "tests.rewards.graders:lenght") as process:
        assert "did you mean length?" in process.receive(PATIENCE)[0]


def test_a_reward_that_takes_too_much_fails_alone():
    config = RewardConfig(functions=["tests.rewards.graders:eats_memory"], timeout=PATIENCE, memory=0.5)
    with Rewards(config, TaskConfig()) as rewards:
        scored = rewards.score([rollout("1"), rollout("900"), rollout("2")])
    assert [r.reward for r in scored] == [1.0, None, 1.0] and "MemoryError" in scored[1].error
