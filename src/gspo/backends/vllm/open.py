"""Whether vLLM can be reached as a run's settings say, and the sampler of that run."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.in_process import Inside
from gspo.backends.vllm.routes import FLAG, Routers
from gspo.backends.vllm.sampler import WEIGHTS, VLLMSampler
from gspo.backends.vllm.server import Engine, Server, http, serving
from gspo.config.policy import LoraConfig
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.ports import Weights

MEMORY, LOCK = Path("/dev/shm"), "lock"
BASE = "base"  # the folder of the exchange that holds the weights below an adapter
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for


def check_sampler(given: SamplerConfig) -> None:
    """Raises ValueError where vLLM cannot be reached with these settings, before anything is started."""
    if given.in_process:
        if importlib.util.find_spec("vllm") is None:
            raise ValueError(
                "sampler.in_process = true: vLLM is not installed in this environment: install it here, or leave it "
                "in one of its own and name its interpreter as sampler.python"
            )
    else:
        http()
    if given.exchange is not None and not Path(given.exchange).is_dir():
        raise ValueError(f"sampler.exchange = {given.exchange!r}: no such folder")
    if not given.in_process and given.url is None and given.python is None and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "vLLM is not installed here: install it into an environment of its own, and name its interpreter as "
            "sampler.python, or a server that runs already as sampler.url"
        )
    if given.python is not None and shutil.which(given.python) is None:
        raise ValueError(f"sampler.python = {given.python!r}: no such program")


@contextmanager
def opened(config: Config, policy: HFPolicy, weights: Weights, keep: Path | None) -> Iterator[VLLMSampler]:
    """The sampler of a run: a server started, or the one at sampler.url, with the policy's weights, proven. Ends with it.
    keep: the folder that gets the server's output in the end, if it is there by then.

    Raises ValueError for what the user can mend, with the remedy.
    """
    check_sampler(config.sampler)
    if config.sampler.exchange is None and MEMORY.is_dir():
        sweep(MEMORY)
    place = config.sampler.exchange or (MEMORY if MEMORY.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="gspo-", dir=place) as scratch, open(Path(scratch) / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sampler = sampler_of(config, policy, Path(scratch))
        server = sampler.server
        try:
            server.start()
            sampler.load(weights)
            if config.algorithm.router_replay == "R3" and sampler.routers is None:
                raise ValueError(
                    'algorithm.router_replay = "R3": vLLM does not tell which experts its routers chose: start it with '
                    f'--{FLAG.replace("_", "-")}, or set router_replay = "R2"'
                )
            yield sampler
        finally:
            sampler.close()
            server.stop()
            # Without a run folder it stays where errors have named it.
            if server.log and server.log.exists() and keep is not None and keep.is_dir():
                shutil.move(server.log, keep / "vllm.log")


def sweep(place: Path) -> None:
    """Deletes what runs that were killed have left in memory: folders whose lock nobody holds any more."""
    for lock in place.glob(f"gspo-*/{LOCK}"):
        with contextlib.suppress(OSError), open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def sampler_of(config: Config, policy: HFPolicy, exchange: Path) -> VLLMSampler:
    """The sampler and its server, which is not started yet; a server of ours finds its first weights in `exchange`."""
    given, model = config.sampler, policy.model
    routers = Routers.of(model)
    server: Engine
    if given.url:
        server = running = Server(given.url)
        running.check()
        running.adapters = model.adapted and running.takes_adapters()
    else:
        arguments = ({FLAG: True} if routers else {}) | adapter_arguments(config.lora, policy) | given.engine_args
        routers = routers if arguments.get(FLAG) else None
        dtype = str(model.compute_dtype).removeprefix("torch.")
        adapters = model.adapted and bool(arguments.get("enable_lora"))
        first = exchange / (BASE if adapters else WEIGHTS)
        model.save_whole(first, merged=not adapters)
        if given.in_process:
            server = Inside(first, dtype, arguments)
        else:
            log = Path(tempfile.gettempdir()) / f"{exchange.name}-vllm.log"
            server = serving(first, given.python, dtype, arguments, log)
        server.adapters = adapters
    temperature, rows = config.rollout.temperature, given.batch_size
    return VLLMSampler(model, server, exchange, temperature, rows, given.timeout, warnings.warn, routers)


def adapter_arguments(lora: LoraConfig, policy: HFPolicy) -> dict[str, Any]:
    """vLLM's arguments for a policy with adapters; {} for one without.

    On a CPU vLLM has no kernels for a mixture of experts beside adapters: it then gets merged weights.
    """
    if not policy.model.adapted:
        return {}
    if policy.sparse and policy.device.type == "cpu":
        return {}
    return {"enable_lora": True, "max_lora_rank": next((rank for rank in RANKS if rank >= lora.rank), RANKS[-1])}
