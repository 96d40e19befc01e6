"""The process group of the trainer and one engine's workers: broadcasts weights, or tickets that say where they lie."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from gspo.agents.threads import begin
from gspo.backends.vllm.calls import shown
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.server import CONTROL, Server, Swap

LAYER = 100.0  # timeout to send a layer to an engine, in seconds; its workers wait CONTROL, as others may be slow


class Link:
    """The process group of this process and one engine's workers.

    Args:
        generation: The generation of the engine that the link was made for.
        device: The device of the layers.
        name: The workers' name for the group.
        ipc: Send where a layer lies, on the shared device, instead of the layer.
    """

    def __init__(self, store: Any, group: Any, generation: int, device: torch.device, name: str, ipc: bool = False) -> None:
        self.generation, self.device, self.name, self.ipc = generation, device, name, ipc
        self._store, self._group = store, [group]
        self._swap: Swap | None = None
        self._layers: list[Tensor] = []  # the last layer, kept alive until the workers have loaded it

    def begin(self, version: int) -> Swap:
        """The request to load the weights that follow. It is given up when the link is dropped."""
        self._swap = Swap(version, group=self.name)
        return self._swap

    def send(self, sizes: tuple[int, int], body: Tensor | None = None) -> list[Any]:
        """Starts to send a layer and returns the work handles. Raises RuntimeError if the group is broken."""
        group, layer = self._group[0], [] if body is None else [body.to(self.device)]
        self._layers = layer if self.ipc else []
        if self.ipc and layer:
            words = wire.ticket(sizes, *layer)
            return [wire.begun(group, x) for x in (torch.tensor([len(words), 0]), words)] + [group.barrier()]
        there = torch.device("cpu") if self.ipc else self.device
        return [wire.begun(group, x) for x in (torch.tensor(sizes, device=there), *layer)]

    def drop(self) -> None:
        """Ends the group. gloo blocks until pending operations end, so a separate thread takes the only reference."""

        def end(group: list[Any] = self._group) -> None:
            with contextlib.suppress(RuntimeError):
                group.pop().abort()

        if self._swap is not None:
            self._swap.give_up()
        begin(end)


PLACE = {"rank": int, "workers": int, "device": str, "gpu": str, "nccl": str, "sleeps": bool}


def places_of(engine: Server) -> list[dict[str, Any]]:
    """Where its workers run (plugin/gspo_vllm.py:Extension.gspo_place). Raises EngineError if the engine cannot tell."""
    places = engine.workers("gspo_place")
    for place in places:
        if not isinstance(place, dict) or any(type(place.get(name)) is not kind for name, kind in PLACE.items()):
            raise EngineError(f"{engine.name}: {shown(place)} does not say where a worker is: {', '.join(PLACE)}")
    ranks, sizes = {place["rank"] for place in places}, {place["workers"] for place in places}
    if len(ranks) < len(places) or len(sizes) > 1 or not ranks <= set(range(*sizes)):
        raise EngineError(f"{engine.name}: {shown(places)} are not the places of workers of one engine")
    return places


def obstacle(places: Sequence[Mapping[str, Any]], device: torch.device) -> str:
    """Why NCCL cannot reach these workers from this device, with the remedy; "" if it can, or if gloo is used."""
    if device.type != "cuda" or any(place["device"] != "cuda" for place in places):
        return ""
    mine = str(torch.cuda.get_device_properties(device).uuid)
    if any(place["gpu"] == mine for place in places):
        own = "start a server with CUDA_VISIBLE_DEVICES set to another, and name it as sampler.urls"
        return (
            f'it shares the trainer\'s GPU, and NCCL takes no two ranks on one: set "ipc" if it has this GPU alone, or {own}'
        )
    version = ".".join(map(str, torch.cuda.nccl.version()))
    other = next((place["nccl"] for place in places if place["nccl"] != version), "")
    return f"its NCCL is {other}, and the trainer's is {version}: install the same torch in both" if other else ""


def apart(engine: Server, places: Sequence[Mapping[str, Any]], device: torch.device, exchange: Path) -> str:
    """Why an engine's workers, at these places, cannot read weights in place on the trainer's device; "" if they can. Raises
    EngineError.
    """
    if device.type == "cuda":
        mine = str(torch.cuda.get_device_properties(device).uuid)
        if any(place["gpu"] != mine for place in places):
            return "it is not on the trainer's GPU alone"
    elif device.type != "cpu" or any(place["device"] != "cpu" for place in places):
        return f"the trainer's device is {device.type}, and its own {places[0]['device']}"
    return unreadable(engine, device, exchange)


def unreadable(engine: Server, device: torch.device, exchange: Path) -> str:
    """Why an engine's workers cannot read a few test bytes in the trainer's memory on this device; "" if they can."""
    sent = secrets.token_bytes(16)
    with tempfile.TemporaryDirectory(prefix="trial-", dir=exchange) as folder:
        try:
            if device.type == "cpu":
                body = wire.room(Path(folder) / "bytes", len(sent))
            else:
                body = torch.empty(len(sent), dtype=torch.uint8, device=device)
            body.copy_(torch.frombuffer(bytearray(sent), dtype=torch.uint8))
            read = engine.workers("gspo_read", wire.ticket((0, len(sent)), body).numpy().tobytes().decode())
        except (EngineError, OSError, RuntimeError) as error:
            return f"it cannot read the trainer's memory ({error})"
    return "" if all(one == {"read": sent.hex()} for one in read) else "it read other bytes in the trainer's memory"


def joined(engine: Server, device: torch.device, generation: int, ipc: bool = False) -> Link:
    """A process group with the workers of an engine. Raises EngineError. device: that of the trainer's weights. ipc: whether
    the workers share it.
    """
    try:
        places = places_of(engine)
        both_on_gpus = device.type == "cuda" and all(place["device"] == "cuda" for place in places)
        backend = "ipc" if ipc else "nccl" if both_on_gpus else "gloo"
        device = torch.device("cpu") if backend == "gloo" else device
        group_device = torch.device("cpu") if ipc else device
        size, parts, name = places[0]["workers"] + 1, urlsplit(engine.name), secrets.token_hex(8)
        address = wire.facing(parts.hostname or "", parts.port or 0)
        store, port = wire.hosted(address, size, CONTROL)
        theirs = begin(lambda: engine.workers("gspo_join", address, str(port), backend, str(CONTROL), name))
        ours = begin(lambda: wire.join(store, 0, size, backend, address, group_device, LAYER))
        done = wait((theirs, ours), CONTROL, FIRST_EXCEPTION).done
        for call in done:
            call.result()
        if len(done) < 2:
            raise EngineError(f"its workers have not joined the trainer's process group in {CONTROL:g} s")
        return Link(store, ours.result(), generation, device, name, ipc)
    except EngineError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # from sockets or torch
        what = f"{type(error).__name__}: {error}"
        raise EngineError(f"its workers and the trainer did not find one another at {engine.name}: {what}") from None
