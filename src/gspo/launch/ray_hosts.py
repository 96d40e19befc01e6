"""The machines where Ray lets the leader of a run start vLLM servers (`ray_engines` has the actors there)."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.exchange_folder import place_of
from gspo.backends.vllm.process import GRACE, EngineHost
from gspo.config.engines import servers_of
from gspo.config.schema import Config
from gspo.distributed.environment import ENGINES, several_machines
from gspo.distributed.ranks import RankLost
from gspo.launch.ray_engines import gist, joined_cluster, name_of

ANSWER = 30.0  # timeout of an actor's answer, in seconds, on top of its own waits
SETTINGS = "VLLM_"  # prefix of the variables that servers get from the leader's environment


class EngineOnRay:
    """A server's process on an actor's machine."""

    def __init__(self, actor: Any, address: str) -> None:
        self.actor, self.address = actor, address

    def poll(self) -> int | None:
        """Its exit status, None while it runs. Raises EngineError if its actor is gone."""
        return asked(self.actor.poll.remote(), self.address)

    def end(self) -> None:
        """Ends the process, and returns when it has ended. A dead actor has already taken it down."""
        with suppress(EngineError):
            asked(self.actor.end.remote(GRACE), self.address, GRACE + ANSWER)


class HostOnRay:
    """A machine with an actor that starts servers there."""

    def __init__(self, actor: Any, address: str, port: int) -> None:
        self.actor, self.address, self.port = actor, address, port

    def begin(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> EngineOnRay:
        """See EngineHost. The server gets its machine's environment and vLLM's variables from this process."""
        given = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)} | dict(variables)
        asked(self.actor.start.remote(list(command), str(log), given), self.address)
        return EngineOnRay(self.actor, self.address)

    def another_port(self) -> int:
        """See EngineHost."""
        return int(asked(self.actor.place.remote(), self.address)[1])

    def sees(self, file: Path, text: str) -> bool:
        """Whether a file has this text on that machine. Raises EngineError."""
        import ray

        try:
            return bool(asked(self.actor.read.remote(str(file)), self.address) == text)
        except EngineError as error:
            if isinstance(error.__cause__, ray.exceptions.RayTaskError):  # the file cannot be read
                return False
            raise


def asked(news: Any, address: str, seconds: float = ANSWER) -> Any:
    """The answer of an actor. Raises EngineError."""
    import ray

    try:
        return ray.get(news, timeout=seconds)
    except ray.exceptions.RayTaskError as error:
        raise EngineError(f"no vLLM server can be started at {address}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise EngineError(f"the actor of the engine at {address} died, or its machine did ({gist(error)})") from error


@contextmanager
def engine_hosts(config: Config) -> Iterator[Sequence[EngineHost]]:
    """The places that Ray has given to a run's vLLM servers; empty if the run starts no server, or was not started by Ray.

    Raises ValueError if ranks on several machines have no exchange folder but need one (with any launcher), or a machine
    does not see it. Raises RankLost if a place has died since, so that the next attempt gets new places.
    """
    sampler = config.sampler
    unneeded = sampler.weight_transfer == "broadcast" and sampler.urls  # config/unused.py rejects a folder in that case
    if sampler.engine == "vllm" and sampler.exchange is None and not unneeded and several_machines():
        raise ValueError(
            "sampler.exchange is not set: ranks on several machines write the weights for vLLM together, into a folder that "
            "all of them see: name one"
        )
    if config.scale.launcher != "ray" or not servers_of(config.sampler):
        yield []
        return
    import ray

    told = json.loads(os.environ[ENGINES])
    with joined_cluster(told["cluster"]):
        try:
            actors = [ray.get_actor(name_of(number), told["namespace"]) for number in range(len(told["places"]))]
        except ValueError as error:  # it died after placement
            raise RankLost(f"an engine's actor is gone: {error}") from error
        hosts = [HostOnRay(actor, *place) for actor, place in zip(actors, told["places"])]
        try:
            check_exchange(config, hosts)
        except EngineError as error:
            raise RankLost(str(error)) from error
        yield hosts


def check_exchange(config: Config, hosts: Sequence[HostOnRay]) -> None:
    """Raises ValueError if a machine does not see the exchange folder."""
    text, place = secrets.token_hex(), place_of(config.sampler)
    with NamedTemporaryFile("w", prefix="gspo-seen-", dir=place, encoding="utf-8") as file:
        file.write(text)
        file.flush()
        blind = [host.address for host in hosts if not host.sees(Path(file.name), text)]
        if not blind:
            return
        what = (
            f"sampler.exchange = {config.sampler.exchange!r}" if config.sampler.exchange else "sampler.exchange is not set"
        )
        raise ValueError(
            f"{what}: the vLLM engines get their weights through {Path(file.name).parent}, and these machines do not see "
            f"there what the leader writes: {', '.join(dict.fromkeys(blind))}: name a folder that all machines share"
        )
