"""A subprocess that scores completions: `python -m gspo.rewards.worker FD`. Graders may hang, crash or print. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import resource
import sys
from multiprocessing.connection import Connection
from typing import Any

from gspo.config.import_function import describe
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import graders
from gspo.workers.json_codec import packed
from gspo.workers.processes import GONE, opened

LONGEST = 300  # characters of an error or a notice


def serve(connection: Connection, names: list[str], reward: RewardConfig, task: TaskConfig, code: CodeConfig) -> None:
    """Loads the rewards `names`, sends [problem or "", notice for the run, signatures by name], then serves requests: each
    is a pickled (name, rows, level). The replies are ["results", results] until all rows are done, or one ["failed", why,
    late] or ["unreadable", why].
    """

    def send(*message: Any) -> None:
        connection.send_bytes(packed(list(message)))

    # A power tower in a completion must not exhaust the machine. Written bytes count, not reserved addresses, of which a GPU
    # driver takes more than there is memory.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (int(reward.memory * 2**30), resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        functions = {name: graders.load(name, reward, task, code) for name in names}
    except BaseException as error:
        send(str(error) if isinstance(error, (ValueError, RuntimeError)) else describe(error), "", {})
        return
    notice = "; ".join(filter(None, (function.notice for function in functions.values())))
    send("", notice[:LONGEST], {name: function.signature for name, function in functions.items()})
    with asyncio.Runner() as runner:
        while True:
            data = connection.recv_bytes()
            try:
                name, rows, level = pickle.loads(data)
            except BaseException as error:  # a class that this process cannot import
                send("unreadable", describe(error))
                continue
            try:
                for results in functions[name].stream(rows, level, runner, reward.timeout):
                    send("results", [(value, error and error[:LONGEST]) for value, error in results])
            except graders.CallFailed as failed:
                send("failed", str(failed)[:LONGEST], failed.late)


if __name__ == "__main__":
    with contextlib.suppress(*GONE), contextlib.closing(opened(sys.argv[1])) as parent:
        serve(parent, *pickle.loads(parent.recv_bytes()))
