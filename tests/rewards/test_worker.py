import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.scorer import Rewards
from gspo.workers import supervisor
from tests.data.tools import rollout
from tests.data.wishes import all_end
from tests.patience import PATIENCE
from tests.rewards.tools import START, run
from tests.sandbox.boxes import box_of
from tests.sandbox.conftest import folder_of_all

__all__ = ["folder_of_all"]


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
    assert all_end(started)
    assert list(folder_of_all.iterdir()) == []


def test_a_reward_that_takes_too_much_fails_alone():
    config = RewardConfig(functions=["tests.rewards.graders:eats_memory"], timeout=PATIENCE, memory=0.5)
    with Rewards(config, TaskConfig()) as rewards:
        scored = rewards.score([rollout("1"), rollout("900"), rollout("2")])
    assert [r.reward for r in scored] == [1.0, None, 1.0] and "MemoryError" in scored[1].error
