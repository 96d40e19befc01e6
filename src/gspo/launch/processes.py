"""The processes of the ranks on this machine, what `launch` asks of them wherever they run, and how a process begins."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from gspo.distributed.environment import PARENT

WATCH = 0.1  # seconds between two looks at a process
ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # ask a run to end


def say(text: str) -> None:
    """A line beside those of the run."""
    print(f"gspo: {text}", file=sys.stderr, flush=True)


@contextmanager
def importing() -> Iterator[None]:
    """No search for garbage meanwhile: there is none in what is imported, and looking takes a sixth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stay() -> None:
    """When memory is short the kernel takes neither this process nor what it starts before others. In an actor: Ray marks
    its processes to go first, and a reward worker, which shall, could no longer mark itself.
    """
    with suppress(OSError):
        usual = Path(f"/proc/{os.getppid()}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(usual)


class Rank(Protocol):
    """The process of a rank, as `subprocess` has it, wherever it runs."""

    def poll(self) -> int | None:
        """Its exit status, minus the signal where one ended it, None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """May be called while a signal is handled."""
        ...


class PlaceLost(Exception):
    """A place for a rank was lost before the rank had started."""


Start = Callable[[Sequence[str], int, Mapping[str, str]], AbstractContextManager[Sequence[Rank]]]
"""Starts a command in so many processes, with these variables and those of each rank. In the end no process is left."""


@contextmanager
def here(command: Sequence[str], ranks: int, variables: Mapping[str, str]) -> Iterator[Sequence[Rank]]:
    """The ranks as processes of this machine."""
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
    """The environment of a rank that this process starts. beside: ranks on this machine. local: its number among them."""
    threads = str(max(1, (os.cpu_count() or 1) // beside))
    own = {"RANK": str(number), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(beside), PARENT: str(os.getpid())}
    return {"OMP_NUM_THREADS": threads} | dict(variables) | own
