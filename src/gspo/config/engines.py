"""Checks of the sampler's settings, and the number of vLLM servers that a run starts. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config


def servers_of(sampler: SamplerConfig) -> int:
    """Number of vLLM servers that a run starts."""
    return 0 if sampler.engine != "vllm" or sampler.urls else sampler.engines


def devices_each(arguments: Mapping[str, Any]) -> int:
    """Number of GPUs of a server with these vLLM arguments."""
    return math.prod(arguments.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data"))


def check_sampler(config: Config) -> None:
    """Refuses sampler settings that conflict with each other or with what is trained. Raises ValueError."""
    check_engine(config.sampler)
    sampler, rank = config.sampler, config.lora.rank
    ahead = config.rollout.max_staleness
    if ahead and sampler.engine == "embedded":
        raise ValueError(
            f"rollout.max_staleness = {ahead}: the embedded sampler shares its weights with the trainer and cannot run "
            'ahead of it: set sampler.engine = "vllm", or study stale rollouts with rollout.delay'
        )
    if ahead and config.rollout.delay:
        raise ValueError(f"rollout.max_staleness = {ahead} and rollout.delay = {config.rollout.delay}: set one of them to 0")
    if rank and sampler.quantize != "none":
        raise ValueError(
            f"sampler.quantize = {sampler.quantize!r} is for a model whose own weights are trained: set lora.rank = 0"
        )
    if rank and sampler.engine != "embedded":
        check_handed_over(sampler, f"adapters (lora.rank = {rank})")
    if ahead:
        check_awake(sampler, "rollout.max_staleness", ahead, "vLLM samples while the learner updates")
    if config.scale.ranks not in (None, 1):
        check_awake(sampler, "scale.ranks", config.scale.ranks, "it is for one GPU that learner and engine share")


def check_engine(sampler: SamplerConfig) -> None:
    """Refuses options that do not apply to the chosen engine. Raises ValueError."""
    if sampler.engine == "embedded":
        return
    if sampler.quantize != "none":
        raise ValueError(
            f"sampler.quantize = {sampler.quantize!r} rounds the embedded sampler's weights: with vLLM give "
            'sampler.engine_args = {quantization = "..."}'
        )
    if sampler.engines > 1:
        check_awake(sampler, "sampler.engines", sampler.engines, "several engines have GPUs of their own")
    if sampler.urls and (sampler.python or sampler.engine_args or sampler.engines > 1):
        raise ValueError(
            "sampler.urls names servers that run already: sampler.python, sampler.engine_args and sampler.engines are for "
            "servers to start"
        )
    if twice := [url for i, url in enumerate(sampler.urls) if url.rstrip("/") in {u.rstrip("/") for u in sampler.urls[:i]}]:
        raise ValueError(f"sampler.urls names {twice[0]!r} twice: a server is one engine; leave it out")


def check_handed_over(sampler: SamplerConfig, what: str) -> None:
    """Refuses a `sampler.weight_transfer` that does not support `what`, which needs the folder. Raises ValueError."""
    if sampler.weight_transfer in ("broadcast", "ipc"):
        way = f'sampler.weight_transfer = "{sampler.weight_transfer}"'
        raise ValueError(f"{way} is not for {what}, which takes the folder: leave it out")


def check_awake(sampler: SamplerConfig, key: str, value: int | None, why: str) -> None:
    """Refuses `sampler.sleep_level` beside `key` = `value`, for the reason `why`. Raises ValueError."""
    if sampler.sleep_level:
        raise ValueError(f"sampler.sleep_level = {sampler.sleep_level} and {key} = {value}: {why}; leave one of them out")
