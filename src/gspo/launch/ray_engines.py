"""Actors that start vLLM servers where Ray has placed them. `ray_hosts` is the leader's side."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gspo.backends.vllm.process import LocalEngine, free_ports
from gspo.distributed.environment import ENGINES
from gspo.launch.processes import ENDS
from gspo.workers import supervisor

OF_RAY = "RAY_"  # prefix of the variables that Ray sets for its own processes


class EngineActor:
    """An actor that starts a vLLM server on its machine, with the GPUs that Ray assigns, and takes it down when it dies."""

    def __init__(self) -> None:
        self.process: LocalEngine | None = None

    def place(self) -> tuple[str, int]:
        """The address of this machine in the cluster, and a free port there."""
        import ray

        address = ray.util.get_node_ip_address()
        return address, free_ports(1, address)[0]

    def read(self, file: str) -> str:
        """The text of a small file as this machine sees it. Raises OSError."""
        return Path(file).read_text(encoding="utf-8")

    def start(self, command: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        """Starts the server, as EngineHost.begin. Raises OSError."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)  # the server inherits this thread's signal mask
        machine = {name: value for name, value in os.environ.items() if not name.startswith(OF_RAY)}
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"there is no program {command[0]}")
        aside = [sys.executable, supervisor.__file__]  # Ray kills this process's children before their standard input closes
        self.process = LocalEngine([*aside, *command], Path(log), variables, machine)

    def poll(self) -> int | None:
        """The server's exit status, None while it runs."""
        return None if self.process is None else self.process.poll()

    def end(self, grace: float = 0.0) -> None:
        """Ends the server, and returns when it has ended. grace: as in LocalEngine.end."""
        if self.process is not None:
            self.process.end(grace)


def seated(group: Any, first: int, count: int, kind: str, size: int) -> tuple[list[Any], dict[str, str]]:
    """Creates the actors for vLLM servers in a placement group. Raises RayError.

    Args:
        first: Index of the first bundle for servers.
        count: Number of servers.
        kind: "GPU" or "CPU".
        size: GPUs or CPUs per server.

    Returns:
        The actors, and the environment variable that lets the leader find them.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if not count:
        return [], {}
    space = uuid.uuid4().hex
    gets = {"num_cpus": size * (kind == "CPU"), "num_gpus": size * (kind == "GPU")}
    seat = ray.remote(max_concurrency=4, **gets)(EngineActor)  # the leader polls a server while it starts
    actors = [
        seat.options(
            name=name_of(number), namespace=space,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, first + number),
        ).remote()
        for number in range(count)
    ]  # fmt: skip
    places = ray.get([actor.place.remote() for actor in actors])
    cluster = ray.get_runtime_context().gcs_address
    return actors, {ENGINES: json.dumps({"cluster": cluster, "namespace": space, "places": places})}


@contextmanager
def joined_cluster(address: str) -> Iterator[str]:
    """Connects the leader to the cluster at this address, unless it is connected already. Yields Ray's id of its machine."""
    import ray

    if ray.is_initialized():
        yield ray.get_runtime_context().get_node_id()
        return
    heard = signal.getsignal(signal.SIGTERM)
    ray.init(address, log_to_driver=False, logging_level="error")
    signal.signal(signal.SIGTERM, heard)  # Ray has replaced the handler
    try:
        yield ray.get_runtime_context().get_node_id()
    finally:
        ray.shutdown()


def gist(error: Exception) -> str:
    """The informative sentence of a Ray error."""
    return str(error).strip().rpartition("\n")[2].partition(". ")[0].strip()


def name_of(number: int) -> str:
    """The actor name of an engine in the cluster."""
    return f"engine {number}"
