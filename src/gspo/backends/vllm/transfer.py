"""How new weights reach the engines: through a folder that they read, broadcast to their workers, or read by these on the
device that they share with the trainer.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from gspo.backends.vllm.errors import EngineError, blamed
from gspo.backends.vllm.fleet import Member
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.process_groups import LAYER, Link, joined
from gspo.backends.vllm.threads import at_once
from gspo.backends.vllm.weight_update_request import Swap
from gspo.interfaces import SamplerError, Weights

WEIGHTS, NEXT, OLD = "weights", "next", "old"  # the folders of the exchange: of now, while they are written, and before


class Transfer(Protocol):
    """A way of the weights to the engines."""

    def take(self, weights: Weights) -> None:
        """Is shown new weights, while engines sample with those of before. Raises SamplerError."""
        ...

    def put(self, weights: Weights) -> None:
        """From here on these are the weights that engines get. Those that serve wait; one that comes back may still be
        given those of before.
        """
        ...

    def give(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """Gives these engines the weights of now, all at the same time. members: with the numbers of their lives. again:
        others have them; an update may begin meanwhile, and what these have then is of no use. Returns what went wrong with
        each that did not get them.
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
            raise no_room(self.exchange, error) from None

    def put(self, weights: Weights) -> None:
        """What was written takes the place of the weights of before, from which an engine may be starting just now."""
        shutil.rmtree(self.exchange / OLD, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):  # before the first update
            (self.exchange / WEIGHTS).rename(self.exchange / OLD)
        (self.exchange / NEXT).rename(self.exchange / WEIGHTS)
        shutil.rmtree(self.exchange / OLD, ignore_errors=True)
        self.bytes = sum(file.stat().st_size for file in (self.exchange / WEIGHTS).glob("*.safetensors"))
        self.copies += 1

    def give(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """See Transfer.give."""
        folder = self.exchange / WEIGHTS
        done, errors = each_of(members, lambda member: member.engine.swap(Swap(version, folder)))
        self.copies += sum(done.values())
        return errors


Packed = tuple[tuple[int, int], Tensor]  # sizes and bytes of a layer (plugin/gspo_transfer.py)
ALL: list[tuple[tuple[int, int], Tensor | None]] = [(wire.END, None)]  # what says that these were all


class BroadcastTransfer(Counted):
    """Each layer is gathered by the rank that leads, and sent to the workers of all engines at the same time.

    Each engine has a process group of its own with this process: one that is dead or hangs harms no other, and one that
    comes back gets a new group. What was sent stays in this machine's memory, for those that come back while the trainer
    changes its weights. device: the trainer's. layer: seconds that one may take to an engine.
    """

    ipc = False  # of its links

    def __init__(self, device: torch.device, layer: float = LAYER) -> None:
        super().__init__()
        self.device, self.layer = device, layer
        self._links: dict[Member, Link] = {}
        self._kept: list[Packed] = []
        self._weights: Weights | None = None  # that were not sent yet
        self._puts, self._whole = 0, False  # how often new weights came; whether all of the last were kept

    def take(self, weights: Weights) -> None:
        """They are gathered as they are sent."""

    def put(self, weights: Weights) -> None:
        """See Transfer.put."""
        self._puts, self._whole, self._weights = self._puts + 1, False, weights

    def give(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """See Transfer.give."""
        puts, layers = self._puts, self._layers
        if again:
            layers = partial(self._kept_layers, puts)
        if not self._whole and (again or self._weights is None):
            return dict.fromkeys(members, EngineError("there are no weights to send: the trainer gave up on them midway"))
        linked, errors = each_of(members, lambda member: self._link(member, members[member]))
        calls = at_once([partial(member.engine.swap, self._links[member].begin(version)) for member in linked])
        sent = dict(zip(linked, calls))
        try:
            for sizes, body in chain(layers(), ALL):
                taking = {member: call for member, call in sent.items() if member not in errors}
                self._each(taking, sizes, body, errors)
        except BaseException:
            if not again:
                self._kept = []  # nothing whole is there
            self._give_up(linked)
            raise
        for member, call in sent.items():
            if member in errors:
                continue
            try:
                taken = call.result()  # which may last, and others count meanwhile
            except Exception as error:
                self._fail(member, blamed(error), errors)
            else:
                self.copies += taken
        return errors

    def close(self) -> None:
        """No more is given."""
        while self._links:
            self._links.popitem()[1].drop()

    def _layers(self) -> Iterator[tuple[tuple[int, int], Tensor | None]]:
        """The layers of now: new ones are gathered, and kept."""
        weights, self._weights = self._weights, None
        if weights is None:
            yield from self._kept_layers(self._puts)
            return
        before, self._kept = self._kept, []
        for layer in weights.layers():
            sizes, body = self._packed(layer)
            if before:
                before.pop(0)  # no more than one whole copy at a time
            self._kept.append((sizes, body.cpu()))
            yield sizes, body
        self.bytes, self.copies = sum(total for (_, total), _ in self._kept), self.copies + 1
        self._whole = True

    def _packed(self, layer: Mapping[str, Tensor]) -> Packed:
        return wire.packed(layer)

    def _kept_layers(self, puts: int) -> Iterator[tuple[tuple[int, int], Tensor | None]]:
        """Those that were sent. puts: how often new weights had come; raises EngineError where others come meanwhile."""
        kept = self._kept  # which shrinks then: no second copy stays for an engine that is slow
        for number in range(len(kept)):
            layer = kept[number : number + 1]
            if self._puts != puts:
                raise EngineError("new weights came while it was sent those of before")
            yield from layer

    def _link(self, member: Member, life: int) -> Link:
        """The group of an engine in this life of it. Raises EngineError."""
        found = self._links.get(member)
        if found is None or found.life != life:
            if found is not None:
                self._links.pop(member).drop()
            self._links[member] = joined(member.engine, self.device, life, self.ipc)
        return self._links[member]

    def _each(
        self,
        calls: Mapping[Member, Future[int]],
        sizes: tuple[int, int],
        body: Tensor | None,
        errors: dict[Member, EngineError],
    ) -> None:
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
            except Exception as error:
                self._fail(member, EngineError(f"it did not take the weights: {error}"), errors)

    def _fail(self, member: Member, error: EngineError, errors: dict[Member, EngineError]) -> None:
        errors[member] = error
        self._links.pop(member).drop()

    def _give_up(self, members: Iterable[Member]) -> None:
        """The engines are told so where they listen."""
        for member in members:
            link = self._links.pop(member, None)
            if link is not None:
                with contextlib.suppress(RuntimeError):
                    wire.ended(link.send(wire.GIVEN_UP), 1.0)
                link.drop()


class IpcTransfer(BroadcastTransfer):
    """Each layer is made once, on the device that trainer and engines share, and these read it there: CUDA's inter-process
    communication on a GPU, on a CPU a file in memory that both map. exchange: the folder for such files.
    """

    ipc = True

    def __init__(self, device: torch.device, exchange: Path, layer: float = LAYER) -> None:
        super().__init__(device, layer)
        self.exchange, self._numbers = exchange, count()

    def _packed(self, layer: Mapping[str, Tensor]) -> Packed:
        if self.device.type != "cpu":
            return super()._packed(layer)
        path = self.exchange / f"layer-{next(self._numbers)}"
        try:
            sizes, body = wire.packed(layer, partial(wire.room, path))
        except OSError as error:
            path.unlink(missing_ok=True)
            raise no_room(self.exchange, error) from None
        weakref.finalize(body, path.unlink, missing_ok=True)  # engines that map it keep it
        return sizes, body


def no_room(exchange: Path, error: Exception) -> SamplerError:
    """What ends a run whose weights cannot be written."""
    free = shutil.disk_usage(exchange).free / 2**20
    return SamplerError(
        f"the weights cannot be written to {exchange}, which has {free:,.0f} MiB left ({error}): name a folder with room "
        "for them as sampler.exchange"
    )


def ended_early(call: Future[int], last: bool) -> None:
    """Raises EngineError where an engine takes no more of what is being sent to it. last: nothing more will be."""
    if call.done():
        call.result()
        if not last:
            raise EngineError("it says that it has all of the weights before they were sent")


def each_of(members: Iterable[Member], do: Callable[[Member], Any]) -> tuple[dict[Member, Any], dict[Member, EngineError]]:
    """What this gives for each of them, all at the same time, and what went wrong with the others."""
    given, errors = {}, {}
    members = list(members)
    for member, call in zip(members, at_once([partial(do, member) for member in members])):
        try:
            given[member] = call.result()
        except Exception as error:  # it may be of this engine alone: the others go on
            errors[member] = blamed(error)
    return given, errors
