"""Chooses how a run transfers weights to its engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.process_groups import LAYER, obstacle
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer, Transfer
from gspo.config.engines import parallel_size
from gspo.config.rollout import SamplerConfig


def choose_transfer(
    given: SamplerConfig, policy: HFPolicy, engines: Sequence[Server], exchange: Path, layer: float = LAYER
) -> Transfer:
    """The transfer for a run whose engines have started. Raises ValueError if they do not support the requested one.
    Adapters always go through the folder, by themselves if all engines take adapters, otherwise merged into the weights.
    """
    device, folder = policy.device, FolderTransfer(exchange, all(engine.adapters for engine in engines))
    if given.weight_transfer == "folder" or policy.model.adapted:
        return folder
    if given.weight_transfer == "broadcast":
        for engine in engines:
            if why := obstacle(engine, device):
                raise ValueError(f'sampler.weight_transfer = "broadcast": {engine.name}: {why}, or set "folder"')
        return BroadcastTransfer(device, layer)
    if device.type != "cuda" or given.urls or copies_of(given) != 1:
        return folder
    on_gpus = all(place["device"] == "cuda" for engine in engines for place in engine.workers("gspo_place"))
    reached = on_gpus and not any(obstacle(engine, device) for engine in engines)
    return BroadcastTransfer(device, layer) if reached else folder


def copies_of(given: SamplerConfig) -> int:
    """Data-parallel copies of the model in a server to start: vLLM has only the first copy join a group."""
    return parallel_size(given.engine_args, "data")
