"""Starts the ranks of a run on a Ray cluster. This process stays as their controller (`launch`).

Actors start the ranks and the vLLM servers, each where Ray has placed it (ray_actors.py).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gspo.config.engines import devices_each, servers_of
from gspo.config.rollout import SamplerConfig
from gspo.distributed.environment import ENGINES
from gspo.launch.processes import STOP_SIGNALS, PlaceLost, Rank, Start
from gspo.launch.ray_actors import ENGINE, GPUS, actor_at, gist
from gspo.runs.signals import handled, heard_here, interrupt

logger = logging.getLogger(__name__)

ANSWER = 10.0  # seconds in which a cluster must accept a connection
SOON = 5.0  # seconds until the user is told what a run waits for; also the timeout for an actor to end its rank


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
                output, self.status = ray.get(self.news)
            except ray.exceptions.RayActorError:
                logger.warning(f"the actor of {self.name} died, or its machine did")
                self.status = -signal.SIGKILL
                break
            for stream, text in zip((sys.stdout, sys.stderr), output):
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
def connected(patience: float, sampler: SamplerConfig) -> Iterator[tuple[Start, str]]:
    """A connection to a cluster: the one at RAY_ADDRESS, else one that `ray start` has begun on this machine, else a new one
    that ends with this context. Yields the function that starts ranks there, and this machine's address in the cluster.
    Raises ValueError. patience: seconds that a run may wait for its places. sampler: its engines get places too.
    """
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        raise ValueError(
            f"RAY_ADDRESS = {os.environ['RAY_ADDRESS']!r}: Ray Client cannot start ranks: type the command on a machine of "
            "the cluster"
        )
    check_answers()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    # A cluster of our own inherits this signal mask: it must outlive the run.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        kind = "GPU" if ray.cluster_resources().get("GPU") else "CPU"  # a restart asks for the same
        yield partial(on_ray, patience=patience, sampler=sampler, kind=kind), str(ray.util.get_node_ip_address())
    finally:
        ray.shutdown()


def check_answers() -> None:
    """Raises ValueError if nothing answers where Ray would connect to a cluster: Ray retries for many minutes, in silence.

    Without RAY_ADDRESS that is the cluster that `ray start` began here last. One that was killed is still in Ray's file.
    """
    given, folder = os.environ.get("RAY_ADDRESS", ""), os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    file = Path(folder, "ray", "ray_current_cluster")
    known = file.read_text().strip() if not given and file.is_file() else ""
    host, _, port = (given or known).rpartition(":")
    if not port.isdecimal():  # "local", "auto", or no cluster
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except OSError as error:
        remedy = f"`ray stop` clears {file}, or RAY_ADDRESS names another" if known else 'name another, or "local"'
        named = "the last Ray cluster of this machine" if known else "RAY_ADDRESS"
        raise ValueError(f"{named} = {given or known!r}: no cluster answers there ({error}): {remedy}") from None


@contextmanager
def on_ray(
    command: Sequence[str],
    ranks: int,
    variables: Mapping[str, str],
    patience: float,
    sampler: SamplerConfig,
    kind: str,
) -> Iterator[Sequence[Rank]]:
    """The ranks as actors of this cluster, one GPU or CPU (`kind`) each, and actors for the run's vLLM servers."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    engines = servers_of(sampler)
    each = devices_each(sampler.engine_args) if engines else 1
    group = placement_group([{kind: 1}] * ranks + [{kind: each}] * engines, strategy="PACK")
    actors: list[Any] = []
    try:
        wait_for_places(group, ranks, engines * each, kind, patience)
        actors += [actor_at(group, number, kind, 1) for number in range(ranks)]
        space, cluster = secrets.token_hex(), ray.get_runtime_context().gcs_address
        for number in range(engines):
            actors.append(actor_at(group, ranks + number, kind, each, name=ENGINE.format(number), namespace=space))
        places = ray.get([actor.place.remote() for actor in actors])
        found = {"cluster": cluster, "namespace": space, "places": [address for address, _ in places[ranks:]]}
        starting, started = [], []
        for number, (index, beside, local, gpus) in enumerate(numbered(places[:ranks])):
            own = dict(variables) | {ENGINES: json.dumps(found)} | ({GPUS: gpus} if gpus else {})
            starting.append(actors[index].start_rank.remote(command, os.getcwd(), own, (number, beside, local)))
            started.append((actors[index], f"rank {number} on {places[index][0]}"))
        ray.get(starting)
        yield [RankOnRay(actor, name) for actor, name in started]
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


def wait_for_places(group: Any, ranks: int, engines: int, kind: str, patience: float) -> None:
    """Waits until a placement group has so many GPUs or CPUs (`kind`), for up to `patience` seconds after a first notice. A
    stop signal interrupts at once: no rank exists yet that could save. Raises RuntimeError if the places do not come.
    """
    import ray

    total, begin, waiting = ranks + engines, time.monotonic(), ""
    needs = f"{total} {kind}{'s' * (total > 1)}" + f" ({ranks} for ranks, {engines} for vLLM engines)" * (engines > 0)
    with handled(heard_here(), interrupt):
        while not group.wait(0.5):  # short waits, so that Python can handle signals in between
            if not waiting and time.monotonic() > begin + SOON:
                has, free = ray.cluster_resources().get(kind, 0), ray.available_resources().get(kind, 0)
                waiting = f"Ray has {has:.0f}, {free:.0f} of them free"
                logger.info(f"waiting for {needs}: {waiting}")
            if time.monotonic() > begin + SOON + patience:
                raise RuntimeError(
                    f"no place for {needs} in scale.timeout = {patience:g} s: {waiting}: wait, or lower scale.ranks or "
                    "sampler.engines"
                )


def numbered(places: Sequence[tuple[str, str]]) -> list[tuple[int, int, int, str]]:
    """Numbers the ranks as `torchrun` does, those of a machine consecutively, given the machine and the GPUs of each actor.
    Returns for each rank its actor's index, the number of ranks on its machine, its index among them, and the GPUs of all of
    them: a rank sees its neighbours' GPUs too, and its own is number LOCAL_RANK.
    """
    order, found = sorted(range(len(places)), key=lambda i: places[i][0]), []
    for index in order:
        beside = [i for i in order if places[i][0] == places[index][0]]
        gpus = ",".join(places[i][1] for i in beside if places[i][1])
        found.append((index, len(beside), beside.index(index), gpus))
    return found
