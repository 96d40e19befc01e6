"""Starts the ranks of a run on this machine, and starts them again where one was killed.

A rank that ends with an error of its own ends the run. One that was killed, or was lost to the others, ends this life of
the run alone: the next one goes on from the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gspo.config.names import RESUME
from gspo.config.ranks import LOST, PARENT, RESTARTS, check_ranks, placed
from gspo.config.schema import Config

GRACE = 15.0  # seconds in which the other ranks end by themselves, after one has
WATCH = 0.1


def take_part(config: Config, arguments: Sequence[str]) -> int | None:
    """What this process of `gspo ARGUMENTS` does: it starts the ranks, it is one that follows, or it leads (None). Returns
    the exit status in the first two cases.
    """
    number, size = placed()
    if number == 0:
        check_ranks(config, size if size > 1 else config.scale.ranks or 1)
    if size == 1 and (config.scale.ranks or 1) > 1:
        return launch(arguments, config.scale.ranks or 1, config.scale.restarts, say)
    if number == 0:
        return None
    from gspo.build.crew import follow  # takes seconds

    follow(config.scale)
    return 0


def say(text: str) -> None:
    """A line beside those of the run."""
    print(f"gspo: {text}", file=sys.stderr, flush=True)


def begun_before(config: Config) -> bool:
    """Whether this is a later life of a run, which goes on from its last checkpoint."""
    return int(os.environ.get(RESTARTS, "0")) > 0 and (Path(config.log.dir) / "config.toml").exists()


def launch(arguments: Sequence[str], ranks: int, restarts: int, tell: Callable[[str], None]) -> int:
    """Runs `gspo ARGUMENTS` in so many processes of this machine. Returns the exit status of the first.

    tell: hears why a life ended. Ctrl-C, SIGTERM and SIGHUP go to the first rank, which finishes its step and saves.
    """
    command = [sys.executable, "-m", "gspo", *arguments]
    for life in range(restarts + 1):
        status, why = live(command, ranks, life)
        if status != LOST:
            return status
        if life < restarts:
            tell(f"{why}: the run goes on from its last checkpoint (restart {life + 1} of scale.restarts = {restarts})")
    tell(f"{why}, and scale.restarts = {restarts}: go on with {RESUME}")
    return 1


def live(command: Sequence[str], ranks: int, life: int) -> tuple[int, str]:
    """One life of a run. Returns its exit status, LOST where another life may go on, and then why it ended."""
    import torch.distributed as dist  # takes seconds

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # where the ranks find one another
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), RESTARTS: str(life), PARENT: str(os.getpid()),
    }  # fmt: skip
    shared.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(ranks):
            own = shared | {"RANK": str(number), "LOCAL_RANK": str(number)}
            started.append(subprocess.Popen(command, env=own, start_new_session=True))
        with passed_on(started[0]):
            while all(process.poll() is None for process in started):
                time.sleep(WATCH)
            first_end = time.monotonic()
            while any(process.poll() is None for process in started) and time.monotonic() - first_end < GRACE:
                time.sleep(WATCH)
        return outcome([process.poll() for process in started])
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def outcome(ended: Sequence[int | None]) -> tuple[int, str]:
    """What the exit statuses of all ranks mean, None for one that did not end: that of the run, and why a life ended."""
    errors = [status for status in ended if status and 0 < status != LOST]
    if errors:
        return errors[0], ""
    for number, status in enumerate(ended):
        if status is not None and status < 0:
            return LOST, f"rank {number} was ended by {signal.Signals(-status).name}"
    if LOST in ended:
        return LOST, f"rank {ended.index(LOST)} lost the others"
    return ended[0] or 0, ""


@contextmanager
def passed_on(first: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that ask a run to end go to its first rank."""

    def handle(number: int, frame: Any) -> None:
        with suppress(ProcessLookupError):
            first.send_signal(number)

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
