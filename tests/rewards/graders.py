"""Reward functions that misbehave. They run in the reward workers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def length(prompts, completions, **columns):
    return [len(completion) for completion in completions]


def wants_answer(prompts, completions, answer):
    return [float(completion == right) for completion, right in zip(completions, answer)]


def raises(prompts, completions, **columns):
    return [float(completion) for completion in completions]


def hangs(prompts, completions, **columns):
    if "hang" in completions:
        time.sleep(1000)
    return [1.0] * len(completions)


def slow_for_many(prompts, completions, path):
    with open(path[0], "a") as file:
        file.write(f"{len(completions)}\n")
    time.sleep(1000 if len(completions) > 1 else 0)
    return [1.0] * len(completions)


async def slow_for_many_async(prompts, completions, path):
    with open(path[0], "a") as file:
        file.write(f"{len(completions)}\n")
    await asyncio.sleep(1000 if len(completions) > 1 else 0)
    return [1.0] * len(completions)


def hangs_in_c(prompts, completions, **columns):
    if "hang" in completions:
        sum(range(10**13))  # holds the interpreter's lock throughout
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
    values = {
        "nan": float("nan"),
        "inf": float("inf"),
        "text": "1.0",
        "none": None,
        "list": [1],
        "true": True,
    }
    return [values[completion] for completion in completions]


def one_short(prompts, completions, **columns):
    return [1.0] * min(len(completions), 2)


def not_a_list(prompts, completions, **columns):
    return 1.0


def talks(prompts, completions, **columns):
    print("a grader's chatter")
    os.write(1, b"\x00\x01\x02" * 1000)
    sys.stdin.read()
    subprocess.run(["echo", "from a child"], check=True)
    return [2.0] * len(completions)


def leaves_child(prompts, completions, path):
    child = subprocess.Popen(["sleep", "1000"])
    Path(path[0]).write_text(str(child.pid))
    time.sleep(1000)


async def judges(prompts, completions, **columns):
    return list(await asyncio.gather(*map(judge, completions)))


async def judge(completion):
    await asyncio.sleep(1000 if completion == "hang" else 0.05)
    if completion == "refuse":
        raise ConnectionError("no judge today")
    return 1.0


def sees_torch(prompts, completions, **columns):
    return [float("torch" in sys.modules)] * len(completions)


def process_id(prompts, completions, **columns):
    return [float(os.getpid())] * len(completions)


not_a_function = 3


def compares(prompts, completions, **columns):
    """Each completion's place among those to its prompt."""
    if "hang" in completions:
        time.sleep(1000)
    if "exit" in completions:
        os._exit(3)
    if "raise" in completions:
        raise ValueError("no order")
    return [float(sorted(completions).index(completion)) for completion in completions]


compares.by_group = True
