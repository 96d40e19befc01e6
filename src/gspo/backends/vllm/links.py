"""The process group of the trainer and an engine's workers, through which weights are broadcast."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from gspo.backends.vllm.calls import shown
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.server import CONTROL, Engine
from gspo.backends.vllm.swap import Swap
from gspo.backends.vllm.threads import at_once

LAYER = 100.0  # seconds that a layer may take to an engine; its workers wait CONTROL, for others may take as long as that


class Link:
    """The process group of this process and one engine's workers. store: where they have found one another. life: of the
    engine, for which it was made. device: of what is sent. name: by which the workers know the group.
    """

    def __init__(self, store: Any, group: Any, life: int, device: torch.device, name: str) -> None:
        self.life, self.device, self.name = life, device, name
        self._store, self._group = store, [group]
        self._swap: Swap | None = None

    def begin(self, version: int) -> Swap:
        """What an engine is to do with the weights that will be sent; it is given up where the link is dropped."""
        self._swap = Swap(version, group=self.name)
        return self._swap

    def send(self, sizes: tuple[int, int], body: Tensor | None = None) -> list[Any]:
        """Begins to send a layer. Returns the broadcasts under way. Raises RuntimeError where it is broken."""
        every = [torch.tensor(sizes, device=self.device), *([] if body is None else [body.to(self.device)])]
        return [wire.begun(self._group[0], x) for x in every]

    def drop(self) -> None:
        """Ends it. gloo waits for what is under way, as long as that may take: in a thread that alone holds the group."""
        if self._swap is not None:
            self._swap.give_up()
        at_once([partial(_end, self._group)])


def _end(group: list[Any]) -> None:
    with contextlib.suppress(RuntimeError):
        group.pop().abort()


PLACE = {"rank": int, "workers": int, "device": str, "gpu": str, "nccl": str}


def places_of(engine: Engine) -> list[dict[str, Any]]:
    """Where its workers are (plugin/gspo_vllm.py:Extension.gspo_place). Raises EngineError for an engine without that."""
    places = engine.workers("gspo_place")
    for place in places:
        if not isinstance(place, dict) or any(type(place.get(name)) is not kind for name, kind in PLACE.items()):
            raise EngineError(f"{engine.name}: {shown(place)} does not say where a worker is: {', '.join(PLACE)}")
    ranks, sizes = {place["rank"] for place in places}, {place["workers"] for place in places}
    if len(ranks) < len(places) or len(sizes) > 1 or not ranks <= set(range(*sizes)):
        raise EngineError(f"{engine.name}: {shown(places)} are not the places of workers of one engine")
    return places


def obstacle(places: Sequence[Mapping[str, Any]], device: torch.device) -> str:
    """Why NCCL cannot reach these workers from this device, and what to do; "" where it can, or gloo is used."""
    if device.type != "cuda" or any(place["device"] != "cuda" for place in places):
        return ""
    mine = str(torch.cuda.get_device_properties(device).uuid)
    if any(place["gpu"] == mine for place in places):
        own = "start a server with CUDA_VISIBLE_DEVICES set to another, and name it as sampler.urls"
        return f"it shares the trainer's GPU, and NCCL takes no two ranks on one: {own}"
    version = ".".join(map(str, torch.cuda.nccl.version()))
    other = next((place["nccl"] for place in places if place["nccl"] != version), "")
    return f"its NCCL is {other}, and the trainer's is {version}: install the same torch in both" if other else ""


def joined(engine: Engine, device: torch.device, life: int) -> Link:
    """A group of this process and the workers of an engine. device: of the trainer's weights. Raises EngineError."""
    try:
        return _joined(engine, device, life)
    except EngineError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # of sockets, of torch
        what = f"{type(error).__name__}: {error}"
        raise EngineError(f"its workers and the trainer did not find one another at {engine.name}: {what}") from None


def _joined(engine: Engine, device: torch.device, life: int) -> Link:
    places = places_of(engine)
    backend = "nccl" if device.type == "cuda" and all(place["device"] == "cuda" for place in places) else "gloo"
    device = device if backend == "nccl" else torch.device("cpu")
    size = places[0]["workers"] + 1
    parts = urlsplit(engine.name)
    address = wire.facing(parts.hostname or "", parts.port or 0)
    store, port = wire.hosted(address, size, CONTROL)
    name = secrets.token_hex(8)
    both: Sequence[Callable[[], Any]] = (
        lambda: engine.workers("gspo_join", address, str(port), backend, str(CONTROL), name),
        lambda: wire.join(store, 0, size, backend, address, device, LAYER),
    )
    theirs, mine = at_once(both)
    done = wait((theirs, mine), CONTROL, FIRST_EXCEPTION).done
    for call in done:
        call.result()
    if len(done) < len(both):
        raise EngineError(f"its workers have not joined the trainer's process group in {CONTROL:g} s")
    return Link(store, mine.result(), life, device, name)
