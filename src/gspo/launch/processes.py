"""The ranks' processes on this machine, the interface that `launch` uses for ranks anywhere, and process startup."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from gspo.distributed.environment import PARENT, rank_and_world_size

logger = logging.getLogger(__name__)
WATCH = 0.1  # poll interval of a process, in seconds
STOP_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # signals that ask a run to stop


@contextmanager
def importing() -> Iterator[None]:
    """Logs that torch is imported, and turns off garbage collection, which finds nothing and takes a sixth of the time."""
    gc.disable()
    try:
        with nullcontext() if sys.modules.get("torch") else timed("torch and transformers"):
            yield
    finally:
        gc.enable()
        logging.getLogger("huggingface_hub").handlers.clear()  # each of its warnings would be shown twice


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Logs what is being loaded, and then how long it took."""
    level = logging.DEBUG if rank_and_world_size()[0] else logging.INFO  # all ranks load the same
    logger.log(level, f"loading {what}")
    begin = time.monotonic()
    yield
    logger.log(level, f"loaded {what} in {time.monotonic() - begin:.1f} s")


class Rank(Protocol):
    """The process of a rank on any machine, with the interface of `subprocess`."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal, None while it runs."""

    def send_signal(self, sig: int) -> None:
        """Sends a signal. Safe to call in a signal handler."""


class PlaceLost(Exception):
    """The place for a rank was lost before the rank started."""


Start = Callable[[Sequence[str], int, Mapping[str, str]], AbstractContextManager[Sequence[Rank]]]
"""Starts a command in so many processes, with these variables and those of each rank. Kills all of them on exit."""


@contextmanager
def here(command: Sequence[str], ranks: int, variables: Mapping[str, str]) -> Iterator[Sequence[Rank]]:
    """The ranks as processes on this machine."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(ranks):
            environment = of_rank(variables, number, ranks, number)
            started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        yield started
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def of_rank(variables: Mapping[str, str], number: int, beside: int, local: int) -> dict[str, str]:
    """The environment of rank `number`, the `local`-th of `beside` ranks on its machine. variables: of all ranks."""
    threads = str(max(1, (os.cpu_count() or 1) // beside))
    own = {"RANK": str(number), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(beside), PARENT: str(os.getpid())}
    return {"OMP_NUM_THREADS": threads} | dict(variables) | own
