"""Starts the ranks of a run on a Ray cluster. This process stays as their controller (`launch`).

Each rank is a separate process. An actor, where Ray has placed it, starts the process, watches it, and takes it down when it
dies.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any

from gspo.config.engines import devices_each, servers_of
from gspo.config.rollout import SamplerConfig
from gspo.launch.processes import ENDS, WATCH, PlaceLost, Rank, Start, of_rank, say, stay
from gspo.launch.ray_engines import gist, seated

SOON = 5.0  # seconds until the user is told what a run waits for; also the timeout for an actor to end its rank
CHUNK = 1 << 20  # most bytes of a rank's output per message
EVERYWHERE = "0.0.0.0"
GPUS = "CUDA_VISIBLE_DEVICES"


class RankActor:
    """An actor that starts a rank's process on its machine and reports its output and exit."""

    def __init__(self) -> None:
        stay()
        self.process: subprocess.Popen[bytes] | None = None
        # Files, not pipes: a rank must not block on a slow reader.
        self.files = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        self.heard = [0, 0]  # bytes read so far

    def place(self) -> tuple[str, str]:
        """The address of this machine in the cluster, and the GPUs that Ray assigned to this actor ("" for none)."""
        import ray

        return ray.util.get_node_ip_address(), os.environ.get(GPUS, "")

    def start(self, command: Sequence[str], folder: str, variables: Mapping[str, str], place: tuple[int, int, int]) -> None:
        """Starts the rank.

        Args:
            folder: The working folder.
            variables: Variables of all ranks.
            place: (number, beside, local), as in `of_rank`.
        """
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        out, err = self.files
        self.process = subprocess.Popen(
            command, env=of_rank(variables, *place), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip

    def listen(self) -> tuple[list[bytes], int | None]:
        """Waits for news. Returns the new output on stdout and stderr, and the exit status once the rank has exited."""
        assert self.process is not None
        while True:
            status = self.process.poll()
            said = [os.pread(file.fileno(), CHUNK, begin) for file, begin in zip(self.files, self.heard)]
            self.heard = [begin + len(text) for begin, text in zip(self.heard, said)]
            if any(said):
                return said, None
            if status is not None:
                return said, status
            time.sleep(WATCH)

    def send_signal(self, number: int) -> None:
        """Sends a signal to the rank."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Kills the rank, and returns when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class RankOnRay:
    """A rank started by an actor, with the interface that `launch` uses. Prints its output."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name
        self.status: int | None = None
        self.signals: list[int] = []
        self.news = actor.listen.remote()

    def poll(self) -> int | None:
        """See `Rank`. An actor that dies takes its rank down."""
        import ray

        while self.signals:
            self.actor.send_signal.remote(self.signals.pop(0))
        while self.status is None and ray.wait([self.news], timeout=0)[0]:
            try:
                said, self.status = ray.get(self.news)
            except ray.exceptions.RayActorError:
                say(f"the actor of {self.name} died, or its machine did")
                self.status = -signal.SIGKILL
                break
            for stream, text in zip((sys.stdout, sys.stderr), said):
                with suppress(OSError, AttributeError):  # no reader is left, or it was closed before Python started
                    stream.buffer.write(text)
                    stream.flush()
            if self.status is None:
                self.news = self.actor.listen.remote()
        return self.status

    def send_signal(self, sig: int) -> None:
        """Queues a signal for the next `poll`: Ray must not be called in a signal handler."""
        self.signals.append(sig)


@contextmanager
def connected(patience: float, sampler: SamplerConfig) -> Iterator[Start]:
    """A connection to a cluster: the one at RAY_ADDRESS, else one that `ray start` has begun on this machine, else a new one
    that ends with this context. patience: seconds that a run may wait for its places. sampler: its engines get places too.

    Raises ValueError if ray is not installed or RAY_ADDRESS is a Ray Client address.
    """
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ValueError(
            f"RAY_ADDRESS = {os.environ['RAY_ADDRESS']!r}: Ray Client cannot start ranks: type the command on a machine of "
            "the cluster"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ValueError(f"scale.launcher = \"ray\" needs ray: pip install 'gspo[ray]' ({error})") from None

    outer = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # a cluster of our own inherits this: it must outlive the run
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, outer)
    try:
        yield lambda command, ranks, variables: on_ray(command, ranks, variables, patience, sampler)
    finally:
        ray.shutdown()


def listens_at() -> str:
    """The address of this machine in the cluster, or all addresses if that one is translated by the network."""
    import ray

    address = str(ray.util.get_node_ip_address())
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        return EVERYWHERE
    return address


@contextmanager
def on_ray(
    command: Sequence[str], ranks: int, variables: Mapping[str, str], patience: float, sampler: SamplerConfig
) -> Iterator[Sequence[Rank]]:
    """The ranks as actors of this cluster, one GPU each (one CPU if the cluster has no GPU), numbered consecutively on each
    machine. Also starts the actors of the run's vLLM servers, with the GPUs or CPUs that each server uses.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    kind = "GPU" if ray.cluster_resources().get("GPU") else "CPU"
    engines, each = servers_of(sampler), devices_each(sampler.engine_args)
    group = placement_group([{kind: 1}] * ranks + [{kind: each}] * engines, strategy="PACK")
    seat = ray.remote(max_concurrency=2, num_cpus=int(kind == "CPU"), num_gpus=int(kind == "GPU"))(RankActor)
    actors: list[Any] = []
    try:
        with interruptible():
            wait_for(group, needed(ranks, engines * each, kind), kind, patience)
        for number in range(ranks):
            strategy = PlacementGroupSchedulingStrategy(group, number)
            actors.append(seat.options(scheduling_strategy=strategy).remote())
        servers, found = seated(group, ranks, engines, kind, each)
        actors += servers
        places = ray.get([actor.place.remote() for actor in actors[:ranks]])
        variables = dict(variables) | found | {"MASTER_ADDR": ray.util.get_node_ip_address()}  # which may be NATed
        starting, named = [], []
        for number, (index, beside, local, gpus) in enumerate(in_rows(places)):
            own = variables | ({GPUS: gpus} if gpus else {})
            starting.append(actors[index].start.remote(command, os.getcwd(), own, (number, beside, local)))
            named.append((actors[index], f"rank {number} on {places[index][0]}"))
        ray.get(starting)
        yield [RankOnRay(actor, name) for actor, name in named]
    except ray.exceptions.RayTaskError as error:
        raise RuntimeError(
            f"Ray cannot start a rank or an engine: {error.cause}: all machines need the same folders, and the same Python "
            "with gspo"
        ) from error
    except ray.exceptions.RayError as error:
        raise PlaceLost(f"an actor died before its rank had begun ({gist(error)})") from error
    finally:
        if actors:
            ray.wait([actor.end.remote() for actor in actors], num_returns=len(actors), timeout=SOON)
        for actor in actors:
            ray.kill(actor)
        remove_placement_group(group)


def needed(ranks: int, engines: int, kind: str) -> str:
    """What a run needs of this kind, in words.

    Args:
        ranks: Devices for all ranks.
        engines: Devices for all engines.
        kind: "GPU" or "CPU".
    """
    total = ranks + engines
    return f"{total} {kind}{'s' * (total > 1)}" + (f" ({ranks} for ranks, {engines} for vLLM engines)" if engines else "")


def wait_for(group: Any, need: str, kind: str, patience: float) -> None:
    """Waits until a placement group has its places. Raises RuntimeError after `patience` seconds."""
    import ray

    if group.wait(min(SOON, patience)):
        return
    has = f"Ray has {ray.cluster_resources().get(kind, 0):.0f}, {ray.available_resources().get(kind, 0):.0f} of them free"
    say(f"waiting for {need}: {has}")
    until = time.monotonic() + patience
    while not group.wait(0.5):  # short waits, so that Python can handle signals in between
        if time.monotonic() < until:
            continue
        raise RuntimeError(
            f"no place for {need} in scale.timeout = {patience:g} s: {has}: wait, or lower scale.ranks or sampler.engines"
        )


@contextmanager
def interruptible() -> Iterator[None]:
    """Meanwhile a stop signal interrupts at once: no rank exists yet that could save."""
    old = {number: signal.signal(number, signal.default_int_handler) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def in_rows(places: Sequence[tuple[str, str]]) -> list[tuple[int, int, int, str]]:
    """Orders the ranks so that those of a machine are consecutive, as `torchrun` numbers them.

    Args:
        places: Machine and GPUs of each actor.

    Returns:
        For each rank: its actor's index, the number of ranks on its machine, its index among them, and the GPUs of all of
        them. A rank sees its neighbours' GPUs too; its own is number LOCAL_RANK.
    """
    machines: dict[str, list[int]] = {}
    for index, (machine, _) in enumerate(places):
        machines.setdefault(machine, []).append(index)
    return [
        (index, len(beside), local, ",".join(places[i][1] for i in beside if places[i][1]))
        for beside in machines.values()
        for local, index in enumerate(beside)
    ]
