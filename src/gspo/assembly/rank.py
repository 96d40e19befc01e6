"""The ranks of a run: how this process joins the process group, and what the followers (ranks other than 0) do."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from gspo.agents import threads
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.heartbeat import heartbeat
from gspo.assembly.learners import LEARNERS
from gspo.assembly.models import models_of
from gspo.config.scale import ScaleConfig
from gspo.distributed.environment import LOST, PARENT, local_world_size, rank_and_world_size
from gspo.distributed.ranks import ProcessRanks, RankLost, noticed
from gspo.learner import leader_follower
from gspo.learner.memory import OutOfMemory

logger = logging.getLogger(__name__)
LOADING = timedelta(hours=2)  # timeout while loading: ranks read weights at very different speeds
FAREWELL = 10.0  # seconds
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True": the launcher hosts the store
MEETING = 0.05  # seconds between two polls for missing ranks
INTERFACE = "GLOO_SOCKET_IFNAME"  # where gloo listens; else at the address of this machine's name


@contextmanager
def connected(scale: ScaleConfig) -> Iterator[ProcessRanks]:
    """Joins the process group. Yields the ranks once all have arrived."""
    number, size = rank_and_world_size()
    if PARENT in os.environ:
        threading.Thread(target=end_with, args=(int(os.environ[PARENT]), number), daemon=True).start()
    for noisy in ("torch.distributed.tensor._redistribute", "torch.distributed.checkpoint"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    warn_of_loopback()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        take_gpu(int(os.environ.get("LOCAL_RANK", 0)))
    store, *_ = next(iter(dist.rendezvous("env://", timeout=LOADING)))
    # torchrun's store outlives a restart: under a new prefix, stale addresses in it are not found.
    store = dist.PrefixStore(name_of_start(store, number, size), store)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", store=store, rank=number, world_size=size, timeout=LOADING,
        device_id=torch.device("cuda", torch.cuda.current_device()) if on_gpu else None,
    )  # fmt: skip
    ranks = ProcessRanks(scale.timeout)
    with heartbeat(store, number, scale.timeout, os.environ.get(AGENT_STORE) == "True"):
        yield ranks
    dist.destroy_process_group()


def take_gpu(number: int) -> None:
    """Makes this GPU, counted from 0, the current one. Raises ValueError if this machine has fewer."""
    if number >= (count := torch.cuda.device_count()):
        started = f"scale.ranks: {local_world_size()} ranks were started on this machine"
        raise ValueError(f"{started}, but torch sees {count} GPU{'s' * (count > 1)} here: start at most {count}")
    torch.cuda.set_device(number)


def warn_of_loopback() -> None:
    """Warns if ranks on other machines cannot reach this one, since its name stands for an address of its own."""
    if INTERFACE in os.environ or local_world_size() == rank_and_world_size()[1]:
        return
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "no address"
    if address.startswith(("127.", "no ")):
        there = ", ".join(name for _, name in socket.if_nameindex() if name != "lo")
        remedy = f"set {INTERFACE} and NCCL_SOCKET_IFNAME to the interface that connects them (there is {there or 'none'})"
        logger.warning(f"{socket.gethostname()} resolves to {address}, which other machines cannot reach: {remedy}")


def name_of_start(store: dist.Store, number: int, size: int) -> str:
    """Handshake of the ranks. Once all are there, returns a unique name of this start of the run, chosen by the leader.

    torchrun's restart counters cannot serve as names: each agent counts only the restarts caused by its own ranks. Each rank
    announces itself with a random token, so that entries left in the store by an earlier start are ignored.
    """
    own = secrets.token_hex(8)
    if number:
        store.set(f"here {number}", own)
        name = store.get(f"start of {own}").decode()
        store.set(f"{name} heard by {number}", "")
        return name
    until = time.monotonic() + LOADING.total_seconds()
    for each in range(1, size):
        while not store.check([f"{own} heard by {each}"]):
            if store.check([f"here {each}"]):
                store.set(f"start of {store.get(f'here {each}').decode()}", own)
            if time.monotonic() > until:
                raise RankLost(f"rank {number}: rank {each} has not come")
            time.sleep(MEETING)
    return own


@contextmanager
def joined(scale: ScaleConfig) -> Iterator[ProcessRanks | None]:
    """Yields the ranks in the leader's process; None in a single-process run. Followers end with the leader."""
    number, size = rank_and_world_size()
    if scale.launcher == "ray" and PARENT not in os.environ:
        raise ValueError('scale.launcher = "ray": start the ranks by `gspo train`; a script trains in one process')
    if number > 0 or scale.ranks not in (None, size):
        wrong = f"scale.ranks = {scale.ranks or size}, but this process is rank {number} of {size}"
        remedy = "start the ranks by `gspo train` or `torchrun ... -m gspo train`; your own script trains in one process"
        raise ValueError(f"{wrong}: {remedy}")
    if size == 1:
        yield None
        return
    with noticed(), connected(scale) as ranks:
        try:
            with noticed():
                yield ranks
        except (RankLost, OutOfMemory):  # the followers are in the middle of a pass
            raise
        except BaseException:
            # A follower in the middle of a pass does not receive this; it notices when this process is gone.
            with suppress(Exception):
                threads.begin(lambda: ranks.broadcast_command(leader_follower.OVER)).result(FAREWELL)
            raise
        ranks.broadcast_command(leader_follower.OVER)


def end_with(parent: int, number: int) -> None:
    """Ends the run once the process that started it is gone: SIGTERM makes the leader save, the followers end with it."""
    while os.getppid() == parent:
        time.sleep(1.0)
    if not dist.is_initialized():
        os._exit(LOST)
    if number == 0:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LOADING.total_seconds())
    os._exit(LOST)


def follow(scale: ScaleConfig) -> None:
    """The main loop of a follower. It ignores Ctrl-C and SIGTERM: the leader handles them and ends it after saving."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with noticed(), connected(scale) as ranks:
        command = ranks.broadcast_command()
        if command is leader_follower.OVER:
            return
        kind, config, last = command
        model, frozen = models_of(config, CallInputs(), last, ranks)
        leader_follower.follow(LEARNERS[kind](config, model, frozen, ranks)[1], ranks)
