"""Starts the ranks of a run on a Ray cluster. This process stays as their controller (`launch`).

Each rank is a process of its own, which an actor starts where Ray has placed it, watches, and takes along when it dies.
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

SOON = 5.0  # seconds after which the user hears what a run waits for, and that an actor may take to end its rank
CHUNK = 1 << 20  # bytes of a rank's output in one message
EVERYWHERE = "0.0.0.0"
GPUS = "CUDA_VISIBLE_DEVICES"


class RankActor:
    """An actor: it starts a rank's process on its machine, and tells what becomes of it."""

    def __init__(self) -> None:
        stay()
        self.process: subprocess.Popen[bytes] | None = None
        # Files, not pipes: a rank must not wait for whoever reads what it says.
        self.files = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        self.heard = [0, 0]  # bytes

    def place(self) -> tuple[str, str]:
        """The address of this machine in the cluster, and the GPUs that Ray gives this actor, "" for none."""
        import ray

        return ray.util.get_node_ip_address(), os.environ.get(GPUS, "")

    def start(self, command: Sequence[str], folder: str, variables: Mapping[str, str], place: tuple[int, int, int]) -> None:
        """place: as `of_rank` takes it."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        out, err = self.files
        self.process = subprocess.Popen(
            command, env=of_rank(variables, *place), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip

    def listen(self) -> tuple[list[bytes], int | None]:
        """Waits for news: what the rank has written to its two outputs since, and its exit status where it has ended."""
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
        """To the rank."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self) -> None:
        """Returns when the rank has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class RankOnRay:
    """A rank that an actor has started, as `launch` watches it. Prints what it says."""

    def __init__(self, actor: Any, name: str) -> None:
        self.actor, self.name = actor, name
        self.status: int | None = None
        self.signals: list[int] = []
        self.news = actor.listen.remote()

    def poll(self) -> int | None:
        """See `Rank`. An actor that died has taken its rank along."""
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
                with suppress(OSError, AttributeError):  # nobody reads it any more, or it was closed before Python began
                    stream.buffer.write(text)
                    stream.flush()
            if self.status is None:
                self.news = self.actor.listen.remote()
        return self.status

    def send_signal(self, sig: int) -> None:
        """With the next `poll`: Ray must not be called while a signal is handled."""
        self.signals.append(sig)


@contextmanager
def connected(patience: float, sampler: SamplerConfig) -> Iterator[Start]:
    """A cluster: the one at RAY_ADDRESS, else one that `ray start` has begun on this machine, else one of our own for as
    long as this lasts. patience: seconds that a run may wait for its places. sampler: whose engines get places too.

    Raises ValueError where ray is not installed, or cannot be used so.
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

    outer = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # for a cluster of our own: it ends when the run has
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, outer)
    try:
        yield lambda command, ranks, variables: on_ray(command, ranks, variables, patience, sampler)
    finally:
        ray.shutdown()


def listens_at() -> str:
    """The address of this machine in the cluster; all of its addresses where the network translates that one."""
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
    """The ranks in actors of this cluster, one GPU each, or one CPU where it has no GPU; those of a machine in a row. Beside
    them actors for the vLLM servers of a run, with as many GPUs or CPUs as each server uses.
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
        variables = dict(variables) | found | {"MASTER_ADDR": ray.util.get_node_ip_address()}  # which may be translated
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
    """What a run needs of this kind, in words. engines: what all of them use."""
    total = ranks + engines
    return f"{total} {kind}{'s' * (total > 1)}" + (f" ({ranks} for ranks, {engines} for vLLM engines)" if engines else "")


def wait_for(group: Any, need: str, kind: str, patience: float) -> None:
    """Until a placement group has its places. Raises RuntimeError where that takes too long."""
    import ray

    if group.wait(min(SOON, patience)):
        return
    has = f"Ray has {ray.cluster_resources().get(kind, 0):.0f}, {ray.available_resources().get(kind, 0):.0f} of them free"
    say(f"waiting for {need}: {has}")
    until = time.monotonic() + patience
    while not group.wait(0.5):  # in short turns: Python hears signals in between
        if time.monotonic() < until:
            continue
        raise RuntimeError(
            f"no place for {need} in scale.timeout = {patience:g} s: {has}: wait, or lower scale.ranks or sampler.engines"
        )


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals that ask a run to end do so at once: it has no rank yet that could save."""
    old = {number: signal.signal(number, signal.default_int_handler) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def in_rows(places: Sequence[tuple[str, str]]) -> list[tuple[int, int, int, str]]:
    """The order of the ranks: those of a machine in a row, as `torchrun` numbers them.

    places: machine, and GPUs, of each actor. Returns for each rank its actor's index, how many ranks are on its machine, its
    number among them, and the GPUs of all of them: a rank sees those of its neighbours, and its own at LOCAL_RANK.
    """
    machines: dict[str, list[int]] = {}
    for index, (machine, _) in enumerate(places):
        machines.setdefault(machine, []).append(index)
    return [
        (index, len(beside), local, ",".join(places[i][1] for i in beside if places[i][1]))
        for beside in machines.values()
        for local, index in enumerate(beside)
    ]
