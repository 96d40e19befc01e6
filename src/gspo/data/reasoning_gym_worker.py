"""A subprocess, because it may hang or crash, that generates the items of a reasoning-gym task:
`python -m gspo.data.reasoning_gym_worker FD`.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

from gspo.config.import_function import describe
from gspo.data import reasoning_gym
from gspo.workers.json_codec import packed
from gspo.workers.processes import GONE, opened


def generate(connection: Connection, request: reasoning_gym.ItemsRequest) -> None:
    """Sends ["note", text] ..., then ["train", item] ... and ["held out", item] ..., and ["end", ""]; or ["error", text]."""

    def send(kind: str, content: Any) -> None:
        connection.send_bytes(packed([kind, content]))

    try:
        train, held_out = reasoning_gym.generate(request, lambda text: send("note", text))
        dataset = reasoning_gym.open_task(request.source, request.config, seed=0, size=1)
        reasoning_gym.check(request.source, dataset, (held_out + train)[:16], lambda text: send("note", text))
        for kind, items in (("train", train), ("held out", held_out)):
            for item in items:
                send(kind, item)
    except GONE:
        raise
    except ValueError as error:
        send("error", str(error))
    except Exception as error:
        send("error", f"{request.source}: {describe(error)}")
    else:
        send("end", "")


if __name__ == "__main__":
    with contextlib.suppress(*GONE), contextlib.closing(opened(sys.argv[1])) as parent:
        generate(parent, pickle.loads(parent.recv_bytes()))
