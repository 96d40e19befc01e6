"""A process that scores completions: `python -m gspo.rewards.worker FD`. Graders may hang, crash or print. Imports no torch.

It talks over a socket of its own, so that graders may use stdin and stdout, and ends when the socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import pickle
import sys
from multiprocessing.connection import Connection

from gspo.config.lookup import describe
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.data.processes import GONE, opened
from gspo.rewards import graders

MEMORY = 4 * 2**30
"""Bytes of address space for our own scorers: a power tower in a completion must not eat the machine."""


def serve(connection: Connection, names: list[str], reward: RewardConfig, task: TaskConfig) -> None:
    """Sends None (ready) or why not; scores (name, rows, level), streaming messages until all are done."""
    if not any(":" in name for name in names):
        _limit_memory()
    try:
        functions = {name: graders.load(name, reward, task) for name in names}
    except BaseException as error:
        connection.send(str(error) if isinstance(error, ValueError) else describe(error))
        return
    connection.send(None)
    with asyncio.Runner() as runner, open(os.devnull, "w") as nowhere:
        while True:
            data = connection.recv_bytes()
            try:
                name, rows, level = pickle.loads(data)
            except BaseException as error:  # a class that this process cannot import
                connection.send(("unreadable", describe(error)))
                continue
            # Should the parent be gone when a call hangs, this ends the process, even one that holds the GIL.
            faulthandler.dump_traceback_later(reward.timeout + 10, exit=True, file=nowhere)
            for message in functions[name].stream(rows, level, runner, reward.timeout):
                connection.send(message)
                faulthandler.dump_traceback_later(reward.timeout + 10, exit=True, file=nowhere)
            faulthandler.cancel_dump_traceback_later()


def _limit_memory() -> None:
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    with contextlib.suppress(*GONE), opened(sys.argv[1]) as parent:
        serve(parent, *parent.recv())
