"""Rewards by name and by callable, and scripts that score."""

import os
import select
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import channels
from gspo.rewards.scorer import Rewards
from gspo.sandbox.watch import TaskTimes
from tests.data.tools import rollout
from tests.patience import PATIENCE


def named(*functions, source="", **config):
    functions = [f if f in ("task", "exact", "math") else f"tests.rewards.graders:{f}" for f in functions]
    return Rewards(RewardConfig(functions=functions, **{"timeout": PATIENCE} | config), TaskConfig(source=source))


def outcome(rewards, *completions, **columns):
    """Rewards and errors of completions, four to a prompt."""
    with rewards:
        scored = rewards.score([rollout(completion, i // 4, **columns) for i, completion in enumerate(completions)])
    return [r.reward for r in scored], [r.error for r in scored]


def in_process(*functions, **config):
    return Rewards(RewardConfig(**{"timeout": PATIENCE} | config), TaskConfig(), functions)


@pytest.fixture
def statuses(monkeypatch):
    """Of a process that has hung up the exit status is waited for as long as it takes."""
    wait = subprocess.Popen.wait
    monkeypatch.setattr(subprocess.Popen, "wait", lambda self, timeout=None: wait(self, timeout and PATIENCE))


@pytest.fixture
def hang(statuses, tmp_path, monkeypatch):
    """reward.timeout, and the limit of a worker's start, hold from where a function says that it hangs; the first also where
    it has had the processor for as long. What answers may take all the time that a busy machine needs. Gives what a callable
    calls to hang; graders have a `hang` of their own.
    """
    (tmp_path / "hangs").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(channels, "GRACE", 0.1)
    worker, thread, hangs, over = channels.Worker._receive, channels.Thread.receive, threading.Event(), threading.Event()

    def of_worker(self, timeout):
        process = self.process
        said, work = tmp_path / "hangs" / str(process.popen.pid), TaskTimes(process.popen.pid)
        before = work.now()[0]
        while not select.select([process.connection], [], [], 0.02)[0] and not said.exists():
            if self.ready and work.now()[0] - before > timeout:
                break
        return worker(self, timeout)

    def of_thread(self, timeout):
        while self.outbox.empty() and not hangs.is_set():
            time.sleep(0.01)
        if self.outbox.empty():  # else it hangs after what it has sent before
            hangs.clear()
        return thread(self, timeout)

    monkeypatch.setattr(channels.Worker, "_receive", of_worker)
    monkeypatch.setattr(channels.Thread, "receive", of_thread)
    yield lambda: hangs.set() or over.wait()
    over.set()


ROOT = os.getcwd()


def run(tmp_path, script):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.Popen([sys.executable, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)


START = """
    import os, signal, sys, threading, time
    sys.path.insert(0, os.getcwd())
    from gspo.config.rewards import RewardConfig
    from gspo.config.rollout import TaskConfig
    from gspo.rewards.scorer import Rewards
    from tests.data.tools import rollout
    config = RewardConfig(functions=["tests.rewards.graders:hangs"], timeout=10_000)
    print("begin", flush=True)
    rewards = Rewards(config, TaskConfig())
"""
