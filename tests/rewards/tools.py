"""Rewards by name and by callable, and scripts that score."""

import contextlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout
from tests.data.wishes import all_end


def named(*functions, source="", **config):
    functions = [f if f in ("task", "exact", "math") else f"tests.rewards.graders:{f}" for f in functions]
    return Rewards(RewardConfig(functions=functions, **config), TaskConfig(source=source))


def outcome(rewards, *completions, **columns):
    """Rewards and errors of completions, four to a prompt."""
    with rewards:
        scored = rewards.score([rollout(completion, i // 4, **columns) for i, completion in enumerate(completions)])
    return [r.reward for r in scored], [r.error for r in scored]


def in_process(*functions, **config):
    return Rewards(RewardConfig(**config), TaskConfig(), functions)


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
    config = RewardConfig(functions=["tests.rewards.graders:hangs"], timeout=60.0)
    print("begin", flush=True)
    rewards = Rewards(config, TaskConfig())
"""


def ended(pid):
    return all_end([pid])


def children(pid):
    """The processes whose parent is `pid`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found
