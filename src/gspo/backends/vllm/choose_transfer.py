"""Chooses how a run transfers weights to its engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.process_groups import LAYER, apart, obstacle, places_of
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer, IpcTransfer, Transfer
from gspo.config.rollout import SamplerConfig

Places = Sequence[Mapping[str, Any]]


def choose_transfer(
    given: SamplerConfig,
    device: torch.device,
    engines: Sequence[Server],
    exchange: Path,
    adapted: bool,
    layer: float = LAYER,
) -> Transfer:
    """The transfer for a run whose engines have started. Raises ValueError if they do not support the requested one.

    Args:
        device: The trainer's device.
        adapted: Whether the run trains adapters. They always go through the folder, by themselves if all engines take
            adapters, otherwise merged into the weights.
        layer: As in BroadcastTransfer.
    """
    folder = FolderTransfer(exchange, all(engine.adapters for engine in engines))
    if given.weight_transfer == "folder" or adapted:
        return folder
    if given.weight_transfer == "broadcast":
        _check("broadcast", engines, lambda _, places: obstacle(places, device))
        return BroadcastTransfer(device, layer)
    if given.weight_transfer == "ipc":
        _check("ipc", engines, lambda engine, places: apart(engine, places, device, exchange))
        return IpcTransfer(device, exchange, layer)
    if device.type != "cuda" or given.urls or copies_of(given) != 1:
        return folder
    each = [(engine, places_of(engine)) for engine in engines]
    if all(not apart(engine, places, device, exchange) for engine, places in each):
        return IpcTransfer(device, exchange, layer)
    places = [place for _, those in each for place in those]
    fits = all(place["device"] == "cuda" for place in places) and not obstacle(places, device)
    return BroadcastTransfer(device, layer) if fits else folder


def _check(transfer: str, engines: Sequence[Server], obstructs: Callable[[Server, Places], str]) -> None:
    """Raises ValueError if an engine cannot get weights by this transfer."""
    for engine in engines:
        try:
            why = obstructs(engine, places_of(engine))
        except EngineError as error:
            why = (
                'does not say where its workers are: start it with this version of gspo\'s launcher, or set "folder" '
                f"({error})"
            )
            raise ValueError(f'sampler.weight_transfer = "{transfer}": {engine.name} {why}') from None
        if why:
            raise ValueError(f'sampler.weight_transfer = "{transfer}": {engine.name}: {why}, or set "folder"')


def copies_of(given: SamplerConfig) -> Any:
    """Data-parallel copies of the model in a server to start: vLLM has only the first copy join a group."""
    return given.engine_args.get("data_parallel_size", 1)
