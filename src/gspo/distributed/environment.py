"""This process among the ranks of a run, and what these cannot do yet. Without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from gspo.config.scale import ScaleConfig
from gspo.config.schema import Config
from gspo.config.values import shown

LOST = 75  # exit status of a rank that lost the others
SHORT = 76  # exit status of a rank that was out of memory, where smaller micro-batches may help
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
AGENTS = "GROUP_WORLD_SIZE"  # processes of torchrun that start ranks, one on each machine
PARENT = "GSPO_PARENT"  # the process that started the ranks
BEGAN = "GSPO_BEGAN"  # when the run was started, in seconds
KEY = "GSPO_SERVE_KEY"  # of the endpoint of `gspo serve`, in all lives of a run
ENGINES = "GSPO_ENGINES"  # where Ray lets the leader start vLLM servers
OWN = "PARENT|BEGAN|SERVE_KEY|ENGINES"
OF_RANKS = re.compile(rf"(RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE|MASTER|TORCHELASTIC)_.*|GSPO_({OWN}))$")
ONE = "is not done on several ranks yet"


def rank_and_world_size() -> tuple[int, int]:
    """This process's number among the ranks that torchrun, or whoever sets the same variables, has started, and how many
    there are: (0, 1) where nobody has.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def several_machines() -> bool:
    """Whether there are ranks on other machines too."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) < rank_and_world_size()[1]


def local_world_size() -> int:
    """Ranks on this machine, with this one; all where nobody says."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", rank_and_world_size()[1]))


def without_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for programs that are no rank: in that of one they would look for the other ranks."""
    return {name: value for name, value in environment.items() if not OF_RANKS.match(name)}


def check_ranks(config: Config, ranks: int) -> None:
    """Raises ValueError with key, value and remedy for what so many ranks cannot do together."""
    scale = config.scale
    if scale.ranks not in (None, ranks):
        raise ValueError(f"scale.ranks = {scale.ranks}, but {ranks} were started: leave it out, or start as many")
    if ranks > 1 and ranks % scale.replicas:
        raise ValueError(f"scale.replicas = {scale.replicas}: must divide scale.ranks = {ranks}")
    if ranks > 1 and ranks // scale.replicas % scale.experts:
        raise ValueError(
            f"scale.experts = {scale.experts}: must divide the ranks of a copy of the model, scale.ranks / scale.replicas = "
            f"{ranks // scale.replicas}"
        )
    if ranks > 1:
        check_several(config)
        return
    for name in ("experts", "replicas") if scale.launcher == "ray" else ("experts", "replicas", "restarts", "timeout"):
        value = getattr(scale, name)
        if value != getattr(ScaleConfig, name):
            raise ValueError(f"scale.{name} = {shown(value)} has no effect on one rank: set scale.ranks, or leave it out")


def check_several(config: Config) -> None:
    """Raises ValueError for settings that need the whole model in one process."""
    for key, wrong, remedy in (
        ("algorithm.name", config.algorithm.name == "ppo", "choose an algorithm without a critic"),
        ("lora.rank", config.lora.rank > 0, "train all weights, or use one rank"),
        ("optimizer.name", config.optimizer.name != "adamw", "more ranks need less memory each; leave it out"),
        ("train.layout", config.train.layout == "packed", 'use "auto", "shared" or "padded"'),
        ("train.offload_optimizer", config.train.offload_optimizer, "more ranks need less memory each; leave it out"),
        ("train.offload_reference", config.train.offload_reference, "more ranks need less memory each; leave it out"),
        ("model.trust_remote_code", config.model.trust_remote_code, "use a model of transformers, or one rank"),
        ("model.device", ":" in config.model.device, "leave it out: each rank takes the GPU of its number"),
    ):
        if wrong:
            section, name = key.split(".")
            raise ValueError(f"{key} = {shown(getattr(getattr(config, section), name))} {ONE}: {remedy}")
