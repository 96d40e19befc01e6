"""A subprocess that scores completions: `python -m gspo.rewards.worker FD`. Graders may hang, crash or print. No torch.

It communicates over its own socket, so that graders may use stdin and stdout, and ends when the socket closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pickle
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gspo.config.import_function import describe
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import graders
from gspo.workers.json_codec import packed
from gspo.workers.processes import GONE, opened

LONGEST = 300
"""Maximum characters of an error or a notice."""


def serve(connection: Connection, names: list[str], reward: RewardConfig, task: TaskConfig, code: CodeConfig) -> None:
    """Loads the rewards `names`, then serves scoring requests.

    First it sends [problem, notice for the run, checksum of the modules, signatures by name]; problem is "" on success. A
    request is a pickled (name, rows, level). The replies are ["results", results] until all rows are done, or one
    ["failed", why, late] or ["unreadable", why].
    """

    def say(*message: Any) -> None:
        connection.send_bytes(packed(list(message)))

    _limit_memory(int(reward.memory * 2**30))
    try:
        functions = {name: graders.load(name, reward, task, code) for name in names}
    except BaseException as error:
        say(str(error) if isinstance(error, (ValueError, RuntimeError)) else describe(error), "", "", {})
        return
    notice = "; ".join(filter(None, (getattr(f, "notice", "") for f in functions.values())))
    say("", notice[:LONGEST], _checksum(names), {name: list(f.signature) for name, f in functions.items()})
    with asyncio.Runner() as runner:
        while True:
            data = connection.recv_bytes()
            try:
                name, rows, level = pickle.loads(data)
            except BaseException as error:  # a class that this process cannot import
                say("unreadable", describe(error))
                continue
            try:
                for results in functions[name].stream(rows, level, runner, reward.timeout):
                    say("results", [[value, error and error[:LONGEST]] for value, error in results])
            except graders.CallFailed as failed:
                say("failed", str(failed)[:LONGEST], failed.late)


def _checksum(names: list[str]) -> str:
    """A checksum of the source files of the named modules."""
    found = hashlib.sha256()
    for name in names:
        module = sys.modules.get(name.partition(":")[0]) if ":" in name else None
        with contextlib.suppress(OSError):
            found.update(Path(getattr(module, "__file__", None) or os.devnull).read_bytes())
    return found.hexdigest()


def _limit_memory(size: int) -> None:
    """Limits memory, so that a power tower in a completion cannot exhaust the machine. Written bytes count, not reserved
    addresses, of which a GPU driver takes more than there is memory.
    """
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (size, resource.getrlimit(resource.RLIMIT_DATA)[1]))


if __name__ == "__main__":
    with contextlib.suppress(*GONE), contextlib.closing(opened(sys.argv[1])) as parent:
        serve(parent, *pickle.loads(parent.recv_bytes()))
