"""Reward functions that misbehave. They run in the reward workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.leap import leap

SLEEP = partial(time.sleep, 1000)
BURN = partial(sum, range(10**13))  # in C, which holds the interpreter's lock throughout


def hang(act=SLEEP):
    with suppress(FileNotFoundError):  # says so to a test that listens (tools.py:hang)
        Path(tempfile.gettempdir(), "hangs", str(os.getppid())).touch()
    act()


async def run_late():
    """Hangs in the worker's loop, where the time for it is over at once."""
    leap(asyncio.get_running_loop())
    await asyncio.sleep(1e6)


def length(prompts, completions, **columns):
    return [len(completion) for completion in completions]


def wants_answer(prompts, completions, answer):
    return [float(completion == right) for completion, right in zip(completions, answer)]


def raises(prompts, completions, **columns):
    return [float(completion) for completion in completions]


def hangs(prompts, completions, **columns):
    if "hang" in completions:
        hang()
    return [1.0] * len(completions)


def hangs_in_c(prompts, completions, **columns):
    if "hang" in completions:
        hang(BURN)
    return [1.0] * len(completions)


def dies(prompts, completions, **columns):
    if "exit" in completions:
        os._exit(3)
    if "segfault" in completions:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "quit" in completions:
        sys.exit("no more")
    return [1.0] * len(completions)


def odd_values(prompts, completions, **columns):
    values = {"nan": float("nan"), "inf": float("inf"), "text": "1.0", "none": None, "list": [1], "true": True}
    return [values[completion] for completion in completions]


def eats_memory(prompts, completions, **columns):
    """As many MiB as each completion says."""
    return [float(len(bytearray(int(completion) << 20)) > 0) for completion in completions]


def talks(prompts, completions, **columns):
    print("a grader's chatter")
    os.write(1, b"\x00\x01\x02" * 1000)
    sys.stdin.read()
    subprocess.run(["echo", "from a child"], check=True)
    return [2.0] * len(completions)


async def judges(prompts, completions, **columns):
    if "refuse" in completions:
        raise ConnectionError("no judge today")
    return [1.0] * len(completions)


def sees_torch(prompts, completions, **columns):
    return [float("torch" in sys.modules)] * len(completions)


def process_id(prompts, completions, **columns):
    return [float(os.getpid())] * len(completions)


def compares(prompts, completions, **columns):
    """Each completion's place among those to its prompt."""
    if "hang" in completions:
        hang()
    if "exit" in completions:
        os._exit(3)
    if "raise" in completions:
        raise ValueError("no order")
    return [float(sorted(completions).index(completion)) for completion in completions]


compares.by_group = True


def in_the_shape_of_trl(prompts, completions, completion_ids, trainer_state, **kwargs):
    assert [completion[0]["content"] for completion in completions] == ["hi"] * len(completions)
    return [sum(ids) + trainer_state.global_step / trainer_state.max_steps for ids in completion_ids]


def variables(prompts, completions, names):
    return [float(name in os.environ) for name in names]
