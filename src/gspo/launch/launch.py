"""Starts the ranks of a run, on this machine or on Ray, and restarts them after a failure.

A rank that exits with an error of its own ends the run. A rank that was killed, lost the others, or ran out of memory for a
micro-batch that can be smaller ends only the current attempt: the next one resumes from the last checkpoint.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from gspo.backends.vllm.exchange_folder import sweep
from gspo.config.files import to_toml
from gspo.config.names import RESUME
from gspo.config.schema import Config
from gspo.distributed.environment import (
    AGENTS,
    BEGAN,
    KEY,
    LOST,
    PARENT,
    RESTARTS,
    SETTINGS,
    SHORT,
    check_ranks,
    rank_and_world_size,
)
from gspo.launch.processes import WATCH, PlaceLost, Rank, Start, here
from gspo.runs.folder import folder_of
from gspo.runs.signals import handled, heard_here
from gspo.workers.supervisor import end_with_parent

logger = logging.getLogger(__name__)

GRACE = 15.0  # seconds for the other ranks to exit by themselves after the first one has
RESTARTABLE = LOST, SHORT  # exit statuses that allow a restart
LOOPBACK = "127.0.0.1"
PATIENCE = 300.0  # timeout of the rendezvous store in its own process, in seconds
INTERRUPTED = 130  # exit status of a run that was asked to stop


class Ended(NamedTuple):
    """The result of one attempt."""

    status: int
    why: str  # if a restart may help
    reported: bool  # whether the leader exited by itself, and so has written the report


def take_part(config: Config, arguments: Sequence[str], follow: Callable[[Config], None]) -> int | None:
    """Starts the ranks of `gspo ARGUMENTS` or runs as one of them. Returns the exit status; None in the leader."""
    number, size = rank_and_world_size()
    folder, settings = Path(config.log.dir), to_toml(config, secrets=True)
    if number == 0:
        check_ranks(config, size if size > 1 else config.scale.ranks or 1)
    if config.scale.launcher == "ray" and PARENT in os.environ:
        end_with_parent(int(os.environ[PARENT]))
    elif config.scale.launcher == "ray" and size > 1:
        raise ValueError('scale.launcher = "ray", but torchrun has started this process: leave one of them out')
    elif config.scale.launcher == "ray":
        from gspo.launch.ray_launch import connected

        with connected(config.scale.timeout, config.sampler) as (on_ray, address), swept(config):
            return launch(arguments, config.scale.ranks or 1, config.scale.restarts, on_ray, address, folder, settings)
    elif size == 1 and (config.scale.ranks or 1) > 1:
        with swept(config):
            return launch(arguments, config.scale.ranks or 1, config.scale.restarts, folder=folder, settings=settings)
    if number == 0:
        return None
    follow(config)
    return 0


@contextmanager
def swept(config: Config) -> Iterator[None]:
    """On exit, deletes the exchange folder and the engine logs that a killed leader has left."""
    try:
        yield
    finally:
        if config.sampler.engine == "vllm":
            sweep(config.sampler, Path(config.log.dir))


def begun_before(config: Config) -> bool:
    """Whether this is a restarted attempt, which resumes from the last checkpoint. A run folder older than the command
    belongs to another run. With several torchrun agents, each counts only the restarts caused by its own ranks.
    """
    settings = Path(folder_of(config.log.dir, resume=True)) / "config.toml"
    first = os.environ.get(RESTARTS, "0") == "0" and os.environ.get(AGENTS, "1") == "1"
    if first or not settings.exists():
        return False
    began = float(os.environ[BEGAN]) if BEGAN in os.environ else began_at(os.getppid())
    return settings.stat().st_mtime >= began


def began_at(process: int) -> float:
    """When a process started, in seconds since 1970."""
    ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(line.split()[1] for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot) + ticks / os.sysconf("SC_CLK_TCK")


def launch(
    arguments: Sequence[str],
    ranks: int,
    restarts: int,
    start: Start = here,
    address: str = LOOPBACK,
    folder: Path | None = None,
    settings: str = "",
) -> int:
    """Runs `gspo ARGUMENTS` in `ranks` processes, restarts them if needed, and returns the run's exit status.

    Ctrl-C, SIGTERM and SIGHUP go to the first rank, which finishes its step and saves. address: one of this machine that all
    ranks can reach; it listens only there. folder: for the report, if the run ends and its leader was lost. settings: the
    configuration as TOML, which every attempt reads: the user may change the file before a restart. No file holds it, since
    it may have secrets.
    """
    command = [sys.executable, "-P", "-m", "gspo", *arguments]  # -P: no file in the current folder can shadow a library
    same = {BEGAN: str(time.time()), KEY: secrets.token_urlsafe(24), SETTINGS: os.fsdecode(settings.encode())}
    signals = Signals()
    with handled(heard_here(), signals.receive):
        for attempt in range(restarts + 1):
            try:
                ended = run_once(command, ranks, {RESTARTS: str(attempt), **same}, start, signals, address)
            except PlaceLost as error:
                ended = Ended(LOST, str(error), reported=False)
            if ended.status not in RESTARTABLE or signals.numbers:
                break
            if attempt < restarts:
                which = f"restart {attempt + 1} of scale.restarts = {restarts}"
                logger.warning(f"{ended.why}: the run goes on from its last checkpoint ({which})")
        else:
            logger.warning(f"{ended.why}, and scale.restarts = {restarts}: go on with {RESUME}")
    if folder is not None and not ended.reported and signal.SIGINT not in signals.numbers[1:]:  # as in runs/signals.py
        from gspo.report.page import report_of  # few runs need it here

        try:
            report_of(folder)
        except Exception as error:  # the run's own result matters more
            logger.warning(f"the report of {folder} could not be written: {error}")
    if ended.status in RESTARTABLE:
        return INTERRUPTED if signals.numbers else 1
    return ended.status


def run_once(
    command: Sequence[str], ranks: int, more: Mapping[str, str], start: Start, signals: Signals, address: str
) -> Ended:
    """Runs one attempt."""
    from gspo.backends.vllm.plugin.gspo_transfer import hosted  # torch takes seconds to import

    _store, port = hosted(address, ranks, PATIENCE)  # the rendezvous of the ranks, as long as it is referenced
    variables = os.environ | {
        "MASTER_ADDR": address, "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(ranks), **more,
    }  # fmt: skip
    if signals.numbers:
        return Ended(INTERRUPTED, "", reported=False)
    with start(command, ranks, variables) as started, signals.forwarded_to(started[0]):
        until, ended = float("inf"), [process.poll() for process in started]
        while None in ended and time.monotonic() < until:
            time.sleep(WATCH)
            ended = [process.poll() for process in started]
            if ended[0] is not None and 0 < ended[0] != LOST:
                break  # the result is known; the others may still be waiting for the leader at the rendezvous
            if until == float("inf") and (ended[0] is not None or any(ended)):  # followers may exit before the leader
                until = time.monotonic() + GRACE
        reported = ended[0] is not None and ended[0] >= 0 and ended[0] not in RESTARTABLE
        return Ended(*outcome(ended), reported)


def outcome(ended: Sequence[int | None]) -> tuple[int, str]:
    """The run's exit status and the reason for a restart, from the exit statuses of all ranks (None: has not exited)."""
    if ended[0] == 0:
        return 0, ""
    errors = [status for status in ended if status and status > 0 and status not in RESTARTABLE]
    if errors:
        return errors[0], ""
    if SHORT in ended:
        return SHORT, f"rank {ended.index(SHORT)} was out of memory, and micro-batches become smaller"
    for number, status in enumerate(ended):
        if status is not None and status < 0:
            return LOST, f"rank {number} was ended by {signal.Signals(-status).name}"
    if LOST in ended:
        return LOST, f"rank {ended.index(LOST)} lost the others"
    return LOST, "rank 0 did not end"


class Signals:
    """The signals that asked the run to stop. They are forwarded to its first rank, if there is one."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.first: Rank | None = None

    def receive(self, number: int) -> None:
        """Signal handler."""
        self.numbers.append(number)
        if self.first is not None:
            with suppress(ProcessLookupError):
                self.first.send_signal(number)

    @contextmanager
    def forwarded_to(self, first: Rank) -> Iterator[None]:
        """Meanwhile forwards signals to this rank, including those received before it started."""
        self.first = first
        for number in tuple(self.numbers):
            first.send_signal(number)
        try:
            yield
        finally:
            self.first = None
