"""How new weights reach the engines: through a folder that they read, or broadcast to their workers."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from torch import Tensor

from gspo.backends.vllm.fleet import Member, at_once
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.server import CONTROL, Engine, EngineError
from gspo.config.rollout import SamplerConfig
from gspo.ports import SamplerError, Weights

WEIGHTS, NEXT, OLD = "weights", "next", "old"  # the folders of the exchange: of now, while they are written, and before
LAYER = 100.0  # seconds that a layer may take to an engine; its workers wait CONTROL, for others may take as long as that


class Transfer(Protocol):
    """A way of the weights to the engines."""

    def take(self, weights: Weights) -> None:
        """Is shown new weights, while engines sample with those of before. Raises SamplerError."""
        ...

    def put(self, weights: Weights) -> None:
        """From here on these are the weights that engines get. The engines pause, and none is given any just now."""
        ...

    def give(self, members: Mapping[Member, int], version: int) -> dict[Member, EngineError]:
        """Gives these engines the weights of now, all at the same time. members: with the numbers of their lives. Returns
        what went wrong with each that did not get them.
        """
        ...

    def counts(self) -> dict[str, float]:
        """Metrics since this was last asked."""
        ...

    def close(self) -> None:
        """No more is given."""
        ...


class Counted:
    """Counts of a way."""

    def __init__(self) -> None:
        self.bytes = self.copies = 0

    def counts(self) -> dict[str, float]:
        """Metrics since this was last asked."""
        found = {"sync/bytes": float(self.bytes), "sync/copies": float(self.copies)}
        self.copies = 0
        return found

    def close(self) -> None:
        """No more is given."""


class FolderTransfer(Counted):
    """Each new version is written into a folder once, and read by every worker of every engine. adapters: the engines take
    adapters in place of whole weights.
    """

    def __init__(self, exchange: Path, adapters: bool) -> None:
        super().__init__()
        self.exchange, self.adapters = exchange, adapters

    def take(self, weights: Weights) -> None:
        """Writes the weights, or the adapter where the engines take one, beside those that they have."""
        try:
            weights.save(str(self.exchange / NEXT), merged=not self.adapters)
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self.exchange).free / 2**20
            raise SamplerError(
                f"the weights cannot be written to {self.exchange}, which has {free:,.0f} MiB left ({error}): name a folder "
                "with room for them as sampler.exchange"
            ) from None

    def put(self, weights: Weights) -> None:
        """What was written takes the place of the weights of before, from which an engine may be starting just now."""
        shutil.rmtree(self.exchange / OLD, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # before the first update
            (self.exchange / WEIGHTS).rename(self.exchange / OLD)
        (self.exchange / NEXT).rename(self.exchange / WEIGHTS)
        shutil.rmtree(self.exchange / OLD, ignore_errors=True)
        self.bytes = sum(file.stat().st_size for file in (self.exchange / WEIGHTS).glob("*.safetensors"))
        self.copies += 1

    def give(self, members: Mapping[Member, int], version: int) -> dict[Member, EngineError]:
        """See Transfer.give."""
        folder = self.exchange / WEIGHTS
        done, errors = each_of(members, lambda member: member.engine.swap(folder, version))
        self.copies += sum(done.values())
        return errors


Packed = tuple[tuple[int, int], Tensor]  # sizes and bytes of a layer (plugin/gspo_transfer.py)
ALL: list[tuple[tuple[int, int], Tensor | None]] = [(wire.END, None)]  # what says that these were all


class Link:
    """The process group of this process and one engine's workers. store: where they have found one another. life: of the
    engine, for which it was made. device: of what is sent.
    """

    def __init__(self, store: Any, group: Any, life: int, device: torch.device) -> None:
        self.life, self.device = life, device
        self._store, self._group = store, [group]

    def send(self, sizes: tuple[int, int], body: Tensor | None = None) -> list[Any]:
        """Begins to send a layer. Returns the broadcasts under way. Raises RuntimeError where it is broken."""
        every = [torch.tensor(sizes, device=self.device), *([] if body is None else [body.to(self.device)])]
        return [wire.begun(self._group[0], x) for x in every]

    def drop(self) -> None:
        """Ends it. gloo waits for what is under way, as long as that may take: in a thread that alone holds the group."""
        at_once([partial(_end, self._group)])


def _end(group: list[Any]) -> None:
    with contextlib.suppress(RuntimeError):
        group.pop().abort()


class BroadcastTransfer(Counted):
    """Each layer is gathered by the rank that leads, and sent to the workers of all engines at the same time.

    Each engine has a process group of its own with this process: one that is dead or hangs harms no other, and one that
    comes back gets a new group. What was sent stays in this machine's memory, for those that come back while the trainer
    changes its weights. device: the trainer's. layer: seconds that one may take to an engine.
    """

    def __init__(self, device: torch.device, layer: float = LAYER) -> None:
        super().__init__()
        self.device, self.layer = device, layer
        self._links: dict[Member, Link] = {}
        self._kept: list[Packed] = []
        self._weights: Weights | None = None  # that were not sent yet

    def take(self, weights: Weights) -> None:
        """They are gathered as they are sent."""

    def put(self, weights: Weights) -> None:
        """See Transfer.put."""
        self._weights = weights

    def give(self, members: Mapping[Member, int], version: int) -> dict[Member, EngineError]:
        """See Transfer.give."""
        if self._weights is None and not self._kept:
            return dict.fromkeys(members, EngineError("there are no weights to send: the trainer gave up on them midway"))
        linked, errors = each_of(members, lambda member: self._link(member, members[member]))
        calls = at_once([partial(member.engine.swap, None, version) for member in linked])
        sent = dict(zip(linked, calls))
        try:
            for sizes, body in chain(self._layers(), ALL):
                taking = {member: call for member, call in sent.items() if member not in errors}
                self._each(taking, sizes, body, errors)
        except BaseException:
            self._give_up(linked)
            raise
        for member, call in sent.items():
            if member in errors:
                continue
            try:
                self.copies += call.result()
            except EngineError as error:
                self._fail(member, error, errors)
        return errors

    def close(self) -> None:
        """No more is given."""
        while self._links:
            self._links.popitem()[1].drop()

    def _layers(self) -> Iterator[tuple[tuple[int, int], Tensor | None]]:
        """The layers of now: new ones are gathered, and kept."""
        weights, self._weights = self._weights, None
        if weights is None:
            yield from self._kept
            return
        before, self._kept = self._kept, []
        for layer in weights.layers():
            sizes, body = wire.packed(layer)
            if before:
                before.pop(0)  # no more than one whole copy at a time
            self._kept.append((sizes, body.cpu()))
            yield sizes, body
        self.bytes, self.copies = sum(total for (_, total), _ in self._kept), self.copies + 1

    def _link(self, member: Member, life: int) -> Link:
        """The group of an engine in this life of it. Raises EngineError."""
        found = self._links.get(member)
        if found is None or found.life != life:
            if found is not None:
                self._links.pop(member).drop()
            self._links[member] = joined(member.engine, self.device, life)
        return self._links[member]

    def _each(
        self, calls: Mapping[Member, Future[int]], sizes: tuple[int, int], body: Tensor | None,
        errors: dict[Member, EngineError],
    ) -> None:  # fmt: skip
        """Sends a layer, or the end, to these and waits until they have it. Who has not becomes one of the `errors`."""
        works: dict[Member, list[Any]] = {}
        for member in calls:
            try:
                works[member] = self._links[member].send(sizes, body)
            except RuntimeError as error:
                self._fail(member, EngineError(f"its group is broken: {error}"), errors)
        until = time.monotonic() + self.layer
        for member, under_way in works.items():
            try:
                wire.ended(under_way, max(0.0, until - time.monotonic()), partial(ended_early, calls[member], body is None))
            except EngineError as error:
                self._fail(member, error, errors)
            except RuntimeError as error:
                self._fail(member, EngineError(f"it did not take the weights: {error}"), errors)

    def _fail(self, member: Member, error: EngineError, errors: dict[Member, EngineError]) -> None:
        errors[member] = error
        self._links.pop(member).drop()

    def _give_up(self, members: Iterable[Member]) -> None:
        """Nothing whole is there: the engines are told so where they listen."""
        self._kept = []
        for member in members:
            link = self._links.pop(member, None)
            if link is not None:
                with contextlib.suppress(RuntimeError):
                    wire.ended(link.send(wire.GIVEN_UP), 1.0)
                link.drop()


def ended_early(call: Future[int], last: bool) -> None:
    """Raises EngineError where an engine takes no more of what is being sent to it. last: nothing more will be."""
    if call.done():
        call.result()
        if not last:
            raise EngineError("it says that it has all of the weights before they were sent")


def chosen(
    given: SamplerConfig, device: torch.device, engines: Sequence[Engine], exchange: Path, adapted: bool,
    layer: float = LAYER,
) -> Transfer:  # fmt: skip
    """How the weights of a run reach its engines, which answer by now. device: the trainer's. adapted: it trains adapters,
    which are merged as they are written. layer: as BroadcastTransfer has it. Raises ValueError where the weights cannot be
    broadcast, and are to be.
    """
    adapters = all(engine.adapters for engine in engines)
    if given.weight_transfer == "folder" or adapted:
        return FolderTransfer(exchange, adapters)
    if given.weight_transfer == "broadcast":
        for engine in engines:
            if why := obstacle(places_of(engine), device):
                raise ValueError(f'sampler.weight_transfer = "broadcast": {engine.name}: {why}, or set "folder"')
        return BroadcastTransfer(device, layer)
    if device.type != "cuda" or given.urls or given.in_process or copies_of(given) != 1:
        return FolderTransfer(exchange, adapters)
    places = [place for engine in engines for place in places_of(engine)]
    fits = all(place["device"] == "cuda" for place in places) and not obstacle(places, device)
    return BroadcastTransfer(device, layer) if fits else FolderTransfer(exchange, adapters)


def copies_of(given: SamplerConfig) -> Any:
    """Copies of the model in a server to start: vLLM tells only the first to join a group."""
    return given.engine_args.get("data_parallel_size", 1)


def places_of(engine: Engine) -> list[dict[str, Any]]:
    """Where its workers are (plugin/gspo_vllm.py:Extension.gspo_place). Raises ValueError for an engine without that."""
    try:
        return engine.workers("gspo_place")
    except EngineError as error:
        raise ValueError(
            f'sampler.weight_transfer = "broadcast": {engine.name} does not say where its workers are: start it with this '
            f'version of gspo\'s launcher, or set "folder" ({error})'
        ) from None


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
    except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:  # of sockets, of torch, of odd answers
        what = f"{type(error).__name__}: {error}"
        raise EngineError(f"its workers and the trainer did not find one another at {engine.name}: {what}") from None


def _joined(engine: Engine, device: torch.device, life: int) -> Link:
    places = engine.workers("gspo_place")
    backend = "nccl" if device.type == "cuda" and all(place["device"] == "cuda" for place in places) else "gloo"
    device = device if backend == "nccl" else torch.device("cpu")
    size = places[0]["workers"] + 1
    parts = urlsplit(engine.name)
    address = wire.facing(parts.hostname or "", parts.port or 0)
    store, port = wire.hosted(address, size, CONTROL)
    both: Sequence[Callable[[], Any]] = (
        lambda: engine.workers("gspo_join", address, str(port), backend, str(CONTROL)),
        lambda: wire.join(store, 0, size, backend, address, device, LAYER),
    )
    theirs, mine = at_once(both)
    done = wait((theirs, mine), CONTROL, FIRST_EXCEPTION).done
    for call in done:
        call.result()
    if len(done) < len(both):
        raise EngineError(f"its workers have not joined the trainer's process group in {CONTROL:g} s")
    return Link(store, mine.result(), life, device)


def each_of(members: Iterable[Member], do: Callable[[Member], Any]) -> tuple[dict[Member, Any], dict[Member, EngineError]]:
    """What this gives for each of them, all at the same time, and what went wrong with the others."""
    given, errors = {}, {}
    members = list(members)
    for member, call in zip(members, at_once([partial(do, member) for member in members])):
        try:
            given[member] = call.result()
        except EngineError as error:
            errors[member] = error
    return given, errors
