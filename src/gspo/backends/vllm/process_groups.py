"""The process group of the trainer and one engine's workers, which broadcasts weights."""

from __future__ import annotations

import contextlib
import secrets
from concurrent.futures import FIRST_EXCEPTION, wait
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
    """The process group of this process and one engine's workers, who call it `name`. device: that of the layers."""

    def __init__(self, store: Any, group: Any, generation: int, device: torch.device, name: str) -> None:
        self.generation, self.device, self.name = generation, device, name
        self._store, self._group = store, [group]
        self._swap: Swap | None = None

    def begin(self, version: int) -> Swap:
        """The request to load the weights that follow. It is given up when the link is dropped."""
        self._swap = Swap(version, group=self.name)
        return self._swap

    def send(self, sizes: tuple[int, int], body: Tensor | None = None) -> list[Any]:
        """Starts to send a layer and returns the work handles. Raises RuntimeError if the group is broken."""
        layer = [] if body is None else [body.to(self.device)]
        return [wire.begun(self._group[0], x) for x in (torch.tensor(sizes, device=self.device), *layer)]

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
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    if any(place["gpu"] == gpu for place in places):
        return (
            "it shares the trainer's GPU, and NCCL takes no two ranks on one: start a server with CUDA_VISIBLE_DEVICES set "
            "to another, and name it as sampler.urls"
        )
    version = ".".join(map(str, torch.cuda.nccl.version()))
    other = next((place["nccl"] for place in places if place["nccl"] != version), "")
    return f"its NCCL is {other}, and the trainer's is {version}: install the same torch in both" if other else ""


def joined(engine: Server, device: torch.device, generation: int) -> Link:
    """A process group with the workers of an engine. device: that of the trainer's weights."""
    places = engine.workers("gspo_place")
    both_on_gpus = device.type == "cuda" and all(place["device"] == "cuda" for place in places)
    backend = "nccl" if both_on_gpus else "gloo"
    device = device if both_on_gpus else torch.device("cpu")
    size, parts, name = places[0]["workers"] + 1, urlsplit(engine.name), secrets.token_hex(8)
    address = wire.facing(parts.hostname or "", parts.port or 0)
    store, port = wire.hosted(address, size, engine.sync_timeout)
    theirs = begin(lambda: engine.workers("gspo_join", address, str(port), backend, str(engine.sync_timeout), name))
    ours = begin(lambda: wire.join(store, 0, size, backend, address, device, LAYER))
    done = wait((theirs, ours), engine.sync_timeout, FIRST_EXCEPTION).done
    for call in done:
        call.result()
    if len(done) < 2:
        raise EngineError(f"its workers have not joined the trainer's process group in {engine.sync_timeout:g} s")
    return Link(store, ours.result(), generation, device, name)
