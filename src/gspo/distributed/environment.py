"""This process's rank, read from environment variables, and checks for settings that ranks do not support. No torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gspo.config.scale import ScaleConfig
from gspo.config.schema import Config
from gspo.config.values import shown

LOST = 75  # exit status of a rank that lost contact with another rank
SHORT = 76  # exit status of a rank that ran out of memory, if smaller micro-batches may help
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
AGENTS = "GROUP_WORLD_SIZE"  # number of torchrun agents, one per machine
PARENT = "GSPO_PARENT"  # the process that started the ranks
BEGAN = "GSPO_BEGAN"  # start time of the run, in seconds since 1970
KEY = "GSPO_SERVE_KEY"  # API key of the `gspo serve` endpoint, the same after each restart of a run
SETTINGS = "GSPO_SETTINGS"  # the configuration as TOML, the same after each restart of a run
ENGINES = "GSPO_ENGINES"  # where Ray lets rank 0 start vLLM servers
OWN = "PARENT|BEGAN|SERVE_KEY|SETTINGS|ENGINES"
OF_RANKS = re.compile(rf"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_.*|GSPO_({OWN}))$")


def rank_and_world_size() -> tuple[int, int]:
    """Rank and world size as set by torchrun or a compatible launcher; (0, 1) if the variables are not set."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def local_world_size() -> int:
    """Number of ranks on this machine, including this one; the world size if the launcher does not set it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", rank_and_world_size()[1]))


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment for subprocesses that are not ranks and must not join their process group."""
    return {name: value for name, value in environment.items() if not OF_RANKS.match(name)}


def check_ranks(config: Config, ranks: int) -> None:
    """Raises ValueError, with key, value and remedy, for settings that do not work with this number of ranks."""
    scale, sampler = config.scale, config.sampler
    if scale.ranks not in (None, ranks):
        raise ValueError(f"scale.ranks = {scale.ranks}, but {ranks} were started: leave it out, or start as many")
    several_machines = local_world_size() < rank_and_world_size()[1]
    unneeded = sampler.weight_transfer == "broadcast" and sampler.urls  # config/unused.py rejects a folder in that case
    if sampler.engine == "vllm" and sampler.weight_dir is None and not unneeded and several_machines:
        raise ValueError(
            "sampler.weight_dir is not set: ranks on several machines write the weights for vLLM together, into a folder "
            "that all of them see: name one"
        )
    if ranks > 1:
        check_division(scale, ranks)
        check_several(config)
        return
    by_ray = scale.launcher == "ray"
    for name in ("expert_parallel", "data_parallel_replicas", *(() if by_ray else ("restarts", "timeout"))):
        value = getattr(scale, name)
        if value != getattr(ScaleConfig, name):
            raise ValueError(f"scale.{name} = {shown(value)} has no effect on one rank: set scale.ranks, or leave it out")


def check_division(scale: ScaleConfig, ranks: int) -> None:
    """Raises ValueError for copies of the model, or divided experts, among which these ranks cannot be divided."""
    if ranks % scale.data_parallel_replicas:
        raise ValueError(f"scale.data_parallel_replicas = {scale.data_parallel_replicas}: must divide scale.ranks = {ranks}")
    if ranks // scale.data_parallel_replicas % scale.expert_parallel:
        raise ValueError(
            f"scale.expert_parallel = {scale.expert_parallel}: must divide the ranks of a copy of the model, "
            f"scale.ranks / scale.data_parallel_replicas = {ranks // scale.data_parallel_replicas}"
        )


def check_several(config: Config) -> None:
    """Raises ValueError for settings that require the whole model in one process."""
    for key, wrong, remedy in (
        ("algorithm.name", config.algorithm.name == "ppo", "choose an algorithm without a critic"),
        ("lora.rank", config.lora.rank > 0, "train all weights, or use one rank"),
        ("optimizer.name", config.optimizer.name != "adamw", "more ranks need less memory each; leave it out"),
        ("train.offload_optimizer", config.train.offload_optimizer, "more ranks need less memory each; leave it out"),
        ("train.offload_reference", config.train.offload_reference, "more ranks need less memory each; leave it out"),
        ("model.trust_remote_code", config.model.trust_remote_code, "use a model of transformers, or one rank"),
        ("sampler.sleep_level", config.sampler.sleep_level > 0, "leave it out: it is for one GPU that both share"),
        ("model.device", ":" in config.model.device, "leave it out: each rank takes the GPU of its number"),
    ):
        if wrong:
            section, name = key.split(".")
            value = shown(getattr(getattr(config, section), name))
            raise ValueError(f"{key} = {value} is not done on several ranks yet: {remedy}")
