"""The process group of the trainer and one engine's workers: broadcasts weights, or tickets that say where they lie."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from concurrent.futures import FIRST_EXCEPTION, wait
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from gspo.agents.threads import begin
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.server import Server, Swap

LAYER = 100.0  # timeout to send a layer to an engine, in seconds; its workers wait longer, as others may be slow


class Link:
    """The process group of this process and one engine's workers, who call it `name`. device: that of the layers. ipc: send
    where a layer lies, on the shared device, instead of the layer.
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
            return [wire.begun(group, x) for x in (torch.tensor([0, len(words)]), words)] + [group.barrier()]
        there = torch.device("cpu") if self.ipc else self.device
        return [wire.begun(group, x) for x in (torch.tensor(sizes, device=there), *layer)]

    def drop(self) -> None:
        """Ends the group. gloo blocks until pending operations end, so a separate thread takes the only reference."""

        def end(group: list[Any] = self._group) -> None:
            with contextlib.suppress(RuntimeError):
                group.pop().abort()

        if self._swap is not None:
            self._swap.given_up.set()
        begin(end)


def obstacle(engine: Server, device: torch.device) -> str:
    """Why NCCL cannot reach an engine's workers from this device, with the remedy; "" if it can, or if gloo is used."""
    places = engine.workers("gspo_place")
    if device.type != "cuda" or any(place["device"] != "cuda" for place in places):
        return ""
    if any(place["gpu"] == gpu_of(device) for place in places):
        return (
            'it shares the trainer\'s GPU, and NCCL takes no two ranks on one: set "ipc" if it has this GPU alone, or start '
            "a server with CUDA_VISIBLE_DEVICES set to another, and name it as sampler.urls"
        )
    version = ".".join(map(str, torch.cuda.nccl.version()))
    other = next((place["nccl"] for place in places if place["nccl"] != version), "")
    return f"its NCCL is {other}, and the trainer's is {version}: install the same torch in both" if other else ""


def apart(engine: Server, device: torch.device, exchange: Path) -> str:
    """Why an engine's workers cannot read weights in place on the trainer's device, tried with a few bytes, or ""."""
    places = engine.workers("gspo_place")
    if any(place["device"] != device.type for place in places):
        return f"the trainer's device is {device.type}, and its own {places[0]['device']}"
    if device.type == "cuda" and any(place["gpu"] != gpu_of(device) for place in places):
        return "it is not on the trainer's GPU alone"
    return unreadable(engine, device, exchange)


def gpu_of(device: torch.device) -> str:
    """The unique id of a GPU."""
    return str(torch.cuda.get_device_properties(device).uuid)


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
    """A process group with the workers of an engine. device: that of the trainer's weights. ipc: whether they share it."""
    places = engine.workers("gspo_place")
    both_on_gpus = device.type == "cuda" and all(place["device"] == "cuda" for place in places)
    backend = "ipc" if ipc else "nccl" if both_on_gpus else "gloo"
    device = torch.device("cpu") if backend == "gloo" else device
    group_device = torch.device("cpu") if ipc else device
    size, parts, name = places[0]["workers"] + 1, urlsplit(engine.name), secrets.token_hex(8)
    address = wire.facing(parts.hostname or "", parts.port or 0)
    store, port = wire.hosted(address, size, engine.sync_timeout)
    theirs = begin(lambda: engine.workers("gspo_join", address, str(port), backend, str(engine.sync_timeout), name))
    ours = begin(lambda: wire.join(store, 0, size, backend, address, group_device, LAYER))
    done = wait((theirs, ours), engine.sync_timeout, FIRST_EXCEPTION).done
    for call in done:
        call.result()
    if len(done) < 2:
        raise EngineError(f"its workers have not joined the trainer's process group in {engine.sync_timeout:g} s")
    return Link(store, ours.result(), generation, device, name, ipc)
