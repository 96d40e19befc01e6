"""A process that runs what may hang, crash or print: `python -m gspo.data.worker FD`. Imports no torch.

It talks over a socket of its own, so that graders may use stdin and stdout, and ends when the socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

from gspo.config.lookup import describe
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.data import reasoning, scorers

MEMORY = 4 * 2**30
"""Bytes of address space for our own scorers: a power tower in a reply must not eat the machine."""


def main(fd: int) -> None:
    """Reads one request for work from the socket `fd` and does it."""
    os.set_inheritable(fd, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # out of memory: the kernel takes this process, not the training
    connection = Connection(fd)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        kind, *arguments = connection.recv()
        (serve if kind == "score" else generate)(connection, *arguments)


def generate(connection: Connection, wanted: reasoning.Wanted) -> None:
    """Sends ("note", text) ... and then ("items", (train, held out)) or ("error", text)."""

    def note(text: str) -> None:
        connection.send(("note", text))

    try:
        train, held_out = reasoning.generate(wanted, note)
        dataset = reasoning.open_task(wanted.source, wanted.config, seed=0, size=1)
        reasoning.check(wanted.source, dataset, (held_out + train)[:16], note)
        answer = pickle.dumps(("items", (train, held_out)))
    except ValueError as error:
        answer = pickle.dumps(("error", str(error)))
    except Exception as error:
        answer = pickle.dumps(("error", f"{wanted.source}: {describe(error)}"))
    connection.send_bytes(answer)


def serve(connection: Connection, names: list[str], reward: RewardConfig, task: TaskConfig) -> None:
    """Sends None (ready) or why not; scores (name, rows, level), streaming messages until all are done."""
    if not any(":" in name for name in names):
        _limit_memory()
    try:
        functions = {name: scorers.load(name, reward, task) for name in names}
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
    main(int(sys.argv[1]))
