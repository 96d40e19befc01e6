"""Checks a run's vLLM settings and opens its sampler."""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from gspo.backends.hf.lora import EXPERTS, Adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.choose_transfer import choose_transfer, copies_of
from gspo.backends.vllm.exchange_folder import exchange
from gspo.backends.vllm.process import EngineHost, LocalHost
from gspo.backends.vllm.process_groups import LAYER
from gspo.backends.vllm.routed_experts import FLAG, Routers
from gspo.backends.vllm.sampler import VLLMSampler
from gspo.backends.vllm.server import KEY, SIDE, Server
from gspo.backends.vllm.transfer import WEIGHTS, writing
from gspo.config.engines import PRECISION, devices_each, direct_arguments, underscored
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.interfaces import Weights

logger = logging.getLogger(__name__)

SLEEP = "enable_sleep_mode"  # a vLLM argument
FILES, SPARE = resource.RLIMIT_NOFILE, 256  # open files beside the connections to engines
BASE = "base"  # folder of the exchange with the base weights of an adapter
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the values that vLLM allows for max_lora_rank


def check_sampler(given: SamplerConfig) -> None:
    """Raises ValueError if vLLM cannot be reached with these settings, before anything is started."""
    if given.weight_dir is not None and not Path(given.weight_dir).is_dir():
        raise ValueError(f"sampler.weight_dir = {given.weight_dir!r}: no such folder")
    if given.weight_transfer == "broadcast" and (copies := copies_of(given)) != 1:
        raise ValueError(
            f"sampler.engine_args = {{data_parallel_size = {copies}}} and sampler.weight_transfer = "
            '"broadcast": vLLM tells only the first of its copies of the model to take such weights: set '
            'sampler.engines instead, or set weight_transfer = "folder"'
        )
    if given.python is not None and shutil.which(given.python) is None:
        raise ValueError(f"sampler.python = {given.python!r}: no such program")


def allow_connections(given: SamplerConfig) -> None:
    """Raises the soft limit on open files to what the engines take: two connections for each completion that takes long, the
    second for /metrics. Raises ValueError if the hard limit is below one each.
    """
    requests, limits = (len(given.urls) or given.engines) * given.batch_size, resource.getrlimit(FILES)
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if hard < requests + SPARE:
        raise ValueError(
            f"sampler.batch_size = {given.batch_size}: with all engines this takes {requests + SPARE} open files, and this "
            f"process may have {hard}: raise the hard limit (ulimit -Hn), or lower sampler.batch_size"
        )
    if soft < (wanted := min(hard, 2 * requests + SPARE)):
        resource.setrlimit(FILES, (int(wanted), limits[1]))


@contextmanager
def opened(
    config: Config, policy: HFPolicy, weights: Weights, keep: Path | None, hosts: Sequence[EngineHost] = ()
) -> Iterator[VLLMSampler]:
    """The sampler of a run, with the policy's weights loaded and proven. On exit, stops it and the servers that it started.
    Raises ValueError for a setting that does not fit. `keep` gets the servers' output at the end, if it exists by then.
    """
    check_sampler(config.sampler)
    if (level := config.sampler.sleep_level) and policy.device.type != "cuda":
        raise ValueError(
            f"sampler.sleep_level = {level}: the learner is on {policy.device}, and vLLM gives back memory of a GPU alone: "
            "leave it out"
        )
    with exchange(config.sampler, keep) as scratch:
        sampler, failed = sampler_of(config, policy, weights, scratch, hosts), False
        try:
            sampler.fleet.start()
            engines = [member.engine for member in sampler.fleet.members]
            # Conversations end at the shortest context, as at the model's own: vLLM would refuse the next turn.
            limits = policy.model.most, *(engine.context() for engine in engines)
            policy.model.most = min((limit for limit in limits if limit is not None), default=None)
            check_sleep(config.sampler, engines)
            layer = min(LAYER, config.scale.timeout / 2)  # other ranks wait for the next layer, and must not time out
            sampler.transfer = choose_transfer(config.sampler, policy, engines, scratch, layer)
            logger.debug(f"weights are transferred by {type(sampler.transfer).__name__}")
            sampler.load(weights)
            if config.algorithm.router_replay == "R3" and sampler.routers is None:
                raise ValueError(
                    'algorithm.router_replay = "R3": vLLM does not report which experts its routers chose: start it with '
                    f'--{FLAG.replace("_", "-")}, or set router_replay = "R2"'
                )
            yield sampler
        except Exception:
            failed = True
            raise
        finally:
            sampler.close()
            sampler.fleet.stop()
            files = [member.engine.log for member in sampler.fleet.members if member.engine.log is not None]
            for number, log in enumerate(files):
                if log.exists() and keep is not None and keep.is_dir():
                    shutil.move(log, keep / ("vllm.log" if len(files) == 1 else f"vllm_{number}.log"))
                elif not failed:  # after a failure it stays, since error messages name its path
                    log.unlink(missing_ok=True)


def check_sleep(given: SamplerConfig, engines: Sequence[Server]) -> None:
    """Raises ValueError if a started engine does not support the sleep level."""
    at = f"sampler.sleep_level = {given.sleep_level}"
    for engine in engines if given.sleep_level else ():
        if not all(place["sleeps"] for place in engine.workers("gspo_place")):
            raise ValueError(f"{at}: {engine.name} forbids it: start it with --{SLEEP.replace('_', '-')}, or leave it out")
        if engine.adapters and given.sleep_level > 1:
            raise ValueError(
                f"{at}: {engine.name} samples with adapters beside the model's weights, which level 2 drops: set it to 1"
            )


def sampler_of(
    config: Config, policy: HFPolicy, weights: Weights, exchange: Path, hosts: Sequence[EngineHost] = ()
) -> VLLMSampler:
    """The sampler and its engines, not yet started. Engines of ours find their first weights in `exchange`."""
    given, model, routers = config.sampler, policy.model, Routers.of(policy)
    allow_connections(given)
    if given.quantization.startswith("int8") and routers is None:
        raise ValueError(
            f"sampler.quantization = {given.quantization!r}: vLLM rounds experts alone to it, and this model has none: "
            'set "fp8_per_tensor", or leave it out'
        )
    if given.urls:
        engines = [Server(url, key=os.environ.get(KEY, ""), sync_timeout=given.sync_timeout) for url in given.urls]
        for server in engines:
            server.check()
        beside = EXPERTS not in config.lora.targets and config.model.quantize == "none"  # theirs are the original weights
        adapters = model.adapted and beside and all(server.takes_adapters() for server in engines)
    else:
        sleeps = {SLEEP: True} if given.sleep_level else {}
        # Not for every mixture: 34 MB for 32k tokens of 48 layers, and vLLM refuses it beside pipeline parallelism.
        experts = {FLAG: True} if routers and config.algorithm.router_replay == "R3" else {}
        ours = experts | sleeps | adapter_arguments(config, policy) | direct_arguments(given)
        arguments = ours | underscored(given.engine_args)
        routers = routers if arguments.get(FLAG) else None
        adapters = model.adapted and bool(arguments.get("enable_lora")) and not direct_arguments(given, PRECISION)
        first = exchange / (BASE if adapters else WEIGHTS)
        with writing(exchange):
            if adapters:
                cast(Adapted, model).save_whole(first, merged=False)
            else:
                weights.save(str(first), merged=True)
        arguments = {"dtype": str(model.compute_dtype).removeprefix("torch.")} | arguments
        engines = servers(given, first, arguments, policy.device, hosts)
    for engine in engines:
        engine.adapters = adapters
    return VLLMSampler(
        model, engines, exchange, config.rollout.temperature, given.batch_size, given.timeout, logger.warning, routers,
        given.sleep_level, given,
    )  # fmt: skip


def servers(
    given: SamplerConfig, first: Path, arguments: Mapping[str, Any], learner: torch.device, hosts: Sequence[EngineHost] = ()
) -> list[Server]:
    """Engines of ours, with their first weights in the folder `first`, on these machines or on this one. Of the arguments,
    such as `{gpu_memory_utilization = 0.4}`, true becomes a flag and false its `--no-` form.
    """
    environments = [dict[str, str]() for _ in hosts] or own_devices(given, learner, arguments)
    # Logs of other machines go beside the folder of the weights, which all machines share, so that they can be read here.
    logs = first.parent.parent if hosts else Path(tempfile.gettempdir())
    made = []
    for i, (variables, host) in enumerate(zip(environments, hosts or [LocalHost()] * given.engines)):
        command = [given.python or sys.executable, str(SIDE)]
        for name, value in ({"model": str(first), "host": host.address} | dict(arguments)).items():
            flag = name.replace("_", "-")
            values = value if isinstance(value, (list, tuple)) else [] if isinstance(value, bool) else [value]
            command += [f"--no-{flag}" if value is False else f"--{flag}"]
            command += [json.dumps(each) if isinstance(each, dict) else str(each) for each in values]
        log = logs / f"{first.parent.name}-vllm-{i}.log"
        key = secrets.token_urlsafe(32)  # the server also swaps weights, and others may be able to reach its port
        url, limits = f"http://{host.address}", (given.start_timeout, given.sync_timeout)
        made.append(Server(url, command, log, variables | {KEY: key}, key, host, *limits))
    return made


def own_devices(given: SamplerConfig, learner: torch.device, arguments: Mapping[str, Any]) -> list[dict[str, str]]:
    """The variables of each engine: GPUs of its own, which no rank uses. One engine beside a single rank shares the rank's
    GPU if it needs one GPU, or more than are free.
    """
    names, size = devices(), devices_each(arguments)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # the ranks on this machine, which use its first GPUs
    if not names:
        return [{} for _ in range(given.engines)]
    taken = [] if learner.type != "cuda" else range(ranks) if ranks > 1 else [learner.index or 0]
    free = [name for i, name in enumerate(names) if i not in taken]
    if given.engines == ranks == 1 and (size == 1 or len(free) < size):
        return [{"CUDA_VISIBLE_DEVICES": names[taken[0]]} if taken and size == 1 else {}]
    if len(free) < given.engines * size:
        raise ValueError(
            f"sampler.engines = {given.engines}: each needs {size} of the {len(names)} GPUs of this machine for itself, and "
            f"the learner leaves {len(free)}: start fewer, or start servers elsewhere and name them as sampler.urls"
        )
    return [{"CUDA_VISIBLE_DEVICES": ",".join(free[i * size : (i + 1) * size])} for i in range(given.engines)]


def devices() -> list[str]:
    """The GPUs visible to a process started here, as CUDA_VISIBLE_DEVICES names them."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:
        return [name for name in seen.split(",") if name]
    # vLLM's torch may see GPUs even if ours, a CPU build, sees none.
    count = torch.cuda.device_count() or len(list(Path("/dev").glob("nvidia[0-9]*")))
    return [str(i) for i in range(count)]


def adapter_arguments(config: Config, policy: HFPolicy) -> dict[str, Any]:
    """vLLM's arguments for a policy with adapters; none for a policy without, or if the engine gets merged weights: for a
    mixture of experts on a CPU, where vLLM has no kernels for one with adapters, for adapters of stacked experts, which are
    untested with vLLM, for ranks above those that vLLM takes, and where vLLM rounds: a reload leaves no old weights, but an
    old adapter could pass the check.
    """
    lora = config.lora
    if not policy.model.adapted or EXPERTS in lora.targets or (policy.sparse and policy.device.type == "cpu"):
        return {}
    if direct_arguments(config.sampler, PRECISION) or lora.rank > RANKS[-1]:
        return {}
    return {"enable_lora": True, "max_lora_rank": next(rank for rank in RANKS if rank >= lora.rank)}
