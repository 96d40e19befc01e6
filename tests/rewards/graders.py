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
from multiprocessing.connection import Connection
from pathlib import Path

from tests.leap import leap

SLEEP = partial(time.sleep, 1000)
BURN = partial(sum, range(10**13))  # in C, which holds the interpreter's lock throughout


def say_that_it_hangs():
    """To a test that listens (tools.py:hang)."""
    with suppress(FileNotFoundError):
        Path(tempfile.gettempdir(), "hangs", str(os.getppid())).touch()


def hang(act=SLEEP):
    say_that_it_hangs()
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


def slow_for_many(prompts, completions, path):
    with open(path[0], "a") as file:
        file.write(f"{len(completions)}\n")
    if len(completions) > 1:
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


def one_short(prompts, completions, **columns):
    return [1.0] * min(len(completions), 2)


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


not_a_function = 3


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


class Code:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.write_text, (Path(self.path), "run")


def sends(prompts, completions, path):
    """Writes into its process's socket, in the midst of a call."""
    for completion in completions:
        if completion == "pickle":
            Connection(int(sys.argv[1])).send(Code(path[0]))
        if completion == "junk":
            os.write(int(sys.argv[1]), b"\xff" * 64)
    return [1.0] * len(completions)


def sees_columns(prompts, completions, when, price, raw, nested, large):
    seen = when[0].isoformat(), str(price[0]), raw[0], nested[0], large[0]
    return [float(seen == ("2026-01-02T00:00:00+00:00", "1.50", b"\0\xff", [{"a": (1, {2})}], float("inf")))]


def in_the_shape_of_trl(prompts, completions, completion_ids, trainer_state, **kwargs):
    assert [completion[0]["content"] for completion in completions] == ["hi"] * len(completions)
    return [sum(ids) + trainer_state.global_step / trainer_state.max_steps for ids in completion_ids]


def variables(prompts, completions, names):
    return [float(name in os.environ) for name in names]


def leaves_children(prompts, completions, path):
    """Programs of its own and of another session, in a file with its process; "hang" does not come back."""
    for i in range(len(completions)):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=i % 2 == 1)
        with open(path[0], "a") as file:
            file.write(f"{child.pid}\n{os.getpid()}\n")
    if "hang" in completions:
        hang(BURN)
    return [1.0] * len(completions)
