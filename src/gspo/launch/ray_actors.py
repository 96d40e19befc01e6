"""Actors on a Ray cluster, and the leader's side of those that start vLLM servers.

An actor starts one process where Ray has placed it, a rank or a server, and takes it down when it dies.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.exchange_folder import place_of
from gspo.backends.vllm.process import GRACE, EngineHost, LocalEngine, free_port
from gspo.config.engines import servers_of
from gspo.config.schema import Config
from gspo.distributed.environment import ENGINES
from gspo.distributed.ranks import RankLost
from gspo.launch.processes import STOP_SIGNALS, WATCH, of_rank
from gspo.workers import supervisor

CHUNK = 1 << 20  # most bytes of a rank's output per message
GPUS = "CUDA_VISIBLE_DEVICES"
OF_RAY = "RAY_"  # prefix of the variables that Ray sets for its own processes
SETTINGS = "VLLM_"  # prefix of the variables that servers get from the leader's environment
ENGINE = "engine {}"  # the name of an engine's actor in the namespace of the run
ANSWER = 30.0  # timeout of an actor's answer, in seconds, on top of its own waits


class Actor:
    """Starts a process on its machine, with the GPUs that Ray assigns."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        # A rank's stdout and stderr. Files, not pipes: a rank must not block on a slow reader.
        self.files = TemporaryFile(), TemporaryFile()  # noqa: SIM115
        self.sent = [0, 0]  # bytes of each

    def place(self) -> tuple[str, str]:
        """The address of this machine in the cluster, and the actor's GPUs ("" for none)."""
        import ray

        return ray.util.get_node_ip_address(), os.environ.get(GPUS, "")

    def free_port(self, address: str) -> int:
        """A free port at this address of its machine."""
        return free_port(address)

    def read(self, file: str) -> str | None:
        """The text of a small file as this machine sees it; None if it cannot be read."""
        try:
            return Path(file).read_text(encoding="utf-8")
        except OSError:
            return None

    def start_rank(
        self, command: Sequence[str], folder: str, variables: Mapping[str, str], place: tuple[int, int, int]
    ) -> None:
        """Starts a rank in this working folder. place: (number, beside, local), as in `of_rank`. Raises OSError."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # the process inherits this thread's signal mask
        out, err = self.files
        self.process = subprocess.Popen(
            command, env=of_rank(variables, *place), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip

    def start_engine(self, command: Sequence[str], log: str, variables: Mapping[str, str]) -> None:
        """Starts a server, as EngineHost.begin. Raises OSError."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        machine = {name: value for name, value in os.environ.items() if not name.startswith(OF_RAY)}
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"there is no program {command[0]}")
        aside = [sys.executable, supervisor.__file__]  # Ray kills this process's children before their standard input closes
        self.process = LocalEngine([*aside, *command], Path(log), variables, machine)

    def poll(self) -> int | None:
        """The exit status of the process, None while it runs."""
        return None if self.process is None else self.process.poll()

    def listen(self) -> tuple[list[bytes], int | None]:
        """Waits for news of a rank. Returns its new output on stdout and stderr, and its exit status once it has exited."""
        while True:
            status = self.poll()
            output = [os.pread(file.fileno(), CHUNK, begin) for file, begin in zip(self.files, self.sent)]
            self.sent = [begin + len(text) for begin, text in zip(self.sent, output)]
            if any(output) or status is not None:
                return output, None if any(output) else status
            time.sleep(WATCH)

    def send_signal(self, number: int) -> None:
        """Sends a signal to the process."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self, grace: float = 0.0) -> None:
        """Ends the process, and returns when it has ended. grace: as in LocalEngine.end; a rank is killed."""
        if isinstance(self.process, LocalEngine):
            self.process.end(grace)
        elif self.process is not None:
            self.process.kill()
            self.process.wait()


def actor_at(group: Any, bundle: int, kind: str, size: int, **options: Any) -> Any:
    """Creates an actor in a bundle of a placement group, with so many GPUs or CPUs (`kind`) and further options of Ray's."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    gets = {"num_cpus": size * (kind == "CPU"), "num_gpus": size * (kind == "GPU")}
    made = ray.remote(max_concurrency=4, **gets)(Actor)  # it is asked other things while it listens or starts a server
    return made.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle), **options).remote()


def gist(error: Exception) -> str:
    """The informative sentence of a Ray error."""
    return str(error).strip().rpartition("\n")[2].partition(". ")[0].strip()


class EngineOnRay:
    """The leader's side of an actor: the machine of a server (EngineHost), and the server's process (EngineProcess)."""

    def __init__(self, actor: Any, address: str) -> None:
        self.actor, self.address = actor, address

    def begin(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> EngineOnRay:
        """See EngineHost. The server gets its machine's environment and vLLM's variables from this process."""
        given = {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)} | dict(variables)
        self._ask("start_engine", list(command), str(log), given)
        return self

    def free_port(self) -> int:
        """See EngineHost."""
        return int(self._ask("free_port", self.address))

    def poll(self) -> int | None:
        """See EngineProcess. Raises EngineError if the actor is gone."""
        return self._ask("poll")

    def end(self) -> None:
        """See EngineProcess. A dead actor has already taken the server down."""
        with suppress(EngineError):
            self._ask("end", GRACE, seconds=GRACE + ANSWER)

    def read(self, file: str) -> str | None:
        """The text of a file as that machine sees it. Raises EngineError if the actor is gone."""
        return self._ask("read", file)

    def _ask(self, method: str, *arguments: Any, seconds: float = ANSWER) -> Any:
        import ray

        try:
            return ray.get(getattr(self.actor, method).remote(*arguments), timeout=seconds)
        except ray.exceptions.RayTaskError as error:
            raise EngineError(f"no vLLM server can be started at {self.address}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            lost = f"the actor of the engine at {self.address} died, or its machine did ({gist(error)})"
            raise EngineError(lost) from error


@contextmanager
def engine_hosts(config: Config) -> Iterator[Sequence[EngineHost]]:
    """The places that Ray has given to a run's vLLM servers, if any. Raises RankLost if one has died."""
    if config.scale.launcher != "ray" or not servers_of(config.sampler):
        yield []
        return
    import ray

    from gspo.backends.vllm.open import check_sampler  # imports torch

    check_sampler(config.sampler)
    found, handler = json.loads(os.environ[ENGINES]), signal.getsignal(signal.SIGTERM)
    ray.init(found["cluster"], log_to_driver=False, logging_level="error")
    signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
    folder, exchange, text = place_of(config.sampler), config.sampler.weight_dir, secrets.token_hex()
    try:
        with NamedTemporaryFile("w", prefix="gspo-seen-", dir=folder, encoding="utf-8") as file:
            file.write(text)
            file.flush()
            try:
                actors = [ray.get_actor(ENGINE.format(i), found["namespace"]) for i in range(len(found["places"]))]
                hosts = [EngineOnRay(actor, address) for actor, address in zip(actors, found["places"])]
                blind = dict.fromkeys(host.address for host in hosts if host.read(file.name) != text)
            except (ValueError, EngineError) as error:  # ValueError: there is no such actor any more
                raise RankLost(f"an engine's actor is gone: {error}") from error
        if blind:
            raise ValueError(
                f"sampler.weight_dir {f'= {exchange!r}' if exchange else 'is not set'}: the vLLM engines get their weights "
                f"through {folder}, and these machines do not see there what the leader writes: {', '.join(blind)}: name a "
                "folder that all machines share"
            )
        yield hosts
    finally:
        ray.shutdown()
