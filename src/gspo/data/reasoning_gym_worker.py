"""A process that makes the items of a reasoning-gym task: `python -m gspo.data.reasoning_gym_worker FD`.

Making them may hang or crash.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from multiprocessing.connection import Connection

from gspo.config.lookup import describe
from gspo.data import reasoning_gym
from gspo.data.processes import GONE, opened


def generate(connection: Connection, request: reasoning_gym.ItemsRequest) -> None:
    """Sends ("note", text) ... and then ("items", (train, held out)) or ("error", text)."""

    def note(text: str) -> None:
        connection.send(("note", text))

    try:
        train, held_out = reasoning_gym.generate(request, note)
        dataset = reasoning_gym.open_task(request.source, request.config, seed=0, size=1)
        reasoning_gym.check(request.source, dataset, (held_out + train)[:16], note)
        message = pickle.dumps(("items", (train, held_out)))
    except ValueError as error:
        message = pickle.dumps(("error", str(error)))
    except Exception as error:
        message = pickle.dumps(("error", f"{request.source}: {describe(error)}"))
    connection.send_bytes(message)


if __name__ == "__main__":
    with contextlib.suppress(*GONE), opened(sys.argv[1]) as parent:
        generate(parent, parent.recv())
