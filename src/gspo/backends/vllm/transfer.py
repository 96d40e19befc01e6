"""Weight transfer to the engines: through a folder, or by broadcast to their workers."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from gspo.agents.threads import begin
from gspo.backends.vllm.errors import EngineError, blamed
from gspo.backends.vllm.fleet import Member
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.process_groups import LAYER, Link, joined
from gspo.backends.vllm.server import Swap
from gspo.interfaces import SamplerError, Weights

WEIGHTS, NEXT, OLD = "weights", "next", "old"  # folders of the exchange: current, being written, previous ones
Message = tuple[tuple[int, int], Tensor | None]  # sizes and payload of a layer, or the end marker (plugin/gspo_transfer.py)


class Transfer:
    """Transfers weights to the engines: `prepare` while they sample, `commit` while they are paused, then `send`."""

    def __init__(self) -> None:
        self.bytes = self.copies = 0

    def prepare(self, weights: Weights) -> None:
        """Prepares new weights while the engines still sample with the old ones. Raises SamplerError."""

    def commit(self, weights: Weights) -> None:
        """Makes these the weights that engines get from now on. A returning engine may still be getting the old ones. Raises
        SamplerError.
        """
        raise NotImplementedError

    def send(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """Sends the current weights to these engines (each with its generation), all at once. Returns the error of each that
        did not get them. again: the others have these weights already; an update may begin meanwhile.
        """
        raise NotImplementedError

    def counts(self) -> dict[str, float]:
        """Metrics since the last call."""
        found = {"sync/bytes": float(self.bytes), "sync/copies": float(self.copies)}
        self.copies = 0
        return found

    def close(self) -> None:
        """Ends all transfers."""


class FolderTransfer(Transfer):
    """Writes each version into a folder that all workers read; `adapters` by themselves, otherwise merged."""

    def __init__(self, exchange: Path, adapters: bool) -> None:
        super().__init__()
        self.exchange, self.adapters = exchange, adapters

    def prepare(self, weights: Weights) -> None:
        """Writes the weights beside the current ones."""
        with writing(self.exchange):
            weights.save(str(self.exchange / NEXT), merged=not self.adapters)

    def commit(self, weights: Weights) -> None:
        """Replaces the old weights with the ones written; an engine may be starting from the old ones right now."""
        current = self.exchange / WEIGHTS
        try:
            with contextlib.suppress(FileNotFoundError):  # before the first update
                current.rename(self.exchange / f"{OLD}-{secrets.token_hex(4)}")
            (self.exchange / NEXT).rename(current)
            self.bytes = sum(file.stat().st_size for file in current.glob("*.safetensors"))
        except OSError as error:
            raise SamplerError(f"new weights cannot take the place of the old ones in {self.exchange}: {error}") from None
        for old in self.exchange.glob(f"{OLD}-*"):  # one whose files are still being read may stay until the next update
            shutil.rmtree(old, ignore_errors=True)
        self.copies += 1

    def send(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """See Transfer."""
        taken, errors = each_of(members, lambda member: member.engine.swap(Swap(version, self.exchange / WEIGHTS)))
        self.copies += sum(taken.values())
        return errors


class BroadcastTransfer(Transfer):
    """Gathers each layer on rank 0 and sends it to the workers of all engines at the same time.

    Each engine has its own process group with this process: a dead or hung engine does not affect the others, and a
    returning one gets a new group. The payloads stay in host memory for engines that come back while the trainer changes its
    weights.

    device: the trainer's. layer: timeout to send one layer to an engine, in seconds.
    """

    def __init__(self, device: torch.device, layer: float = LAYER) -> None:
        super().__init__()
        self.device, self.layer = device, layer
        self._links: dict[Member, Link] = {}
        self._kept: list[Message] = []
        self._weights: Weights | None = None  # not yet sent
        self._commits, self._whole = 0, False  # updates so far; whether the last one was kept completely

    def commit(self, weights: Weights) -> None:
        """See Transfer."""
        self._commits, self._whole, self._weights = self._commits + 1, False, weights

    def send(self, members: Mapping[Member, int], version: int, again: bool = False) -> dict[Member, EngineError]:
        """See Transfer."""
        commits, weights = self._commits, None if again else self._weights
        if not self._whole and weights is None:
            return dict.fromkeys(members, EngineError("there are no weights to send: the trainer gave up on them midway"))
        linked, errors = each_of(members, lambda member: self._link(member, members[member]))
        calls = {member: begin(partial(member.engine.swap, link.begin(version))) for member, link in linked.items()}
        end: list[Message] = [(wire.END, None)]
        try:
            for message in chain(self._gathered(weights) if weights else self._resent(commits), end):
                self._each({member: call for member, call in calls.items() if member not in errors}, message, errors)
        except BaseException:
            if not again:
                self._kept = []  # incomplete
            self._give_up(linked)
            raise
        for member, call in calls.items():
            if member not in errors:
                try:
                    taken = call.result()  # separate: it may block, while other threads update `copies`
                    self.copies += taken
                except Exception as error:
                    self._fail(member, error, errors)
        return errors

    def close(self) -> None:
        """Drops all process groups."""
        while self._links:
            self._links.popitem()[1].drop()

    def _gathered(self, weights: Weights) -> Iterator[Message]:
        """Gathers the layers of new weights, and keeps them."""
        self._weights, self._kept = None, []
        for layer in weights.layers():
            sizes, body = wire.packed(layer)
            self._kept.append((sizes, body.cpu()))
            yield sizes, body
        self.bytes, self.copies = sum(total for (_, total), _ in self._kept), self.copies + 1
        self._whole = True

    def _resent(self, commits: int) -> Iterator[Message]:
        """The kept layers. Raises EngineError if there are more updates than `commits`."""
        for layer in self._kept:
            if self._commits != commits:  # so that no second copy stays in memory for a slow engine
                raise EngineError("new weights came while it was sent those of before")
            yield layer

    def _link(self, member: Member, generation: int) -> Link:
        """The process group with an engine in this generation. Raises EngineError."""
        if member in self._links and self._links[member].generation != generation:
            self._links.pop(member).drop()
        if member not in self._links:
            self._links[member] = joined(member.engine, self.device, generation)
        return self._links[member]

    def _each(self, calls: Mapping[Member, Future[int]], message: Message, errors: dict[Member, EngineError]) -> None:
        """Sends a layer, or the end marker, and waits until the engines have it. Adds those that failed to `errors`."""
        works: dict[Member, list[Any]] = {}
        for member in calls:
            try:
                works[member] = self._links[member].send(*message)
            except RuntimeError as error:  # its group is broken
                self._fail(member, error, errors)
        until = time.monotonic() + self.layer
        for member, under_way in works.items():
            try:
                wire.ended(under_way, max(0.0, until - time.monotonic()), partial(raise_if_failed, calls[member]))
            except Exception as error:
                self._fail(member, error, errors)

    def _fail(self, member: Member, error: Exception, errors: dict[Member, EngineError]) -> None:
        errors[member] = blamed(error)
        self._links.pop(member).drop()

    def _give_up(self, members: Iterable[Member]) -> None:
        """Informs the engines that still listen."""
        for member in members:
            link = self._links.pop(member, None)
            if link is not None:
                with contextlib.suppress(RuntimeError):
                    wire.ended(link.send(wire.GIVEN_UP), 1.0)
                link.drop()


@contextlib.contextmanager
def writing(exchange: Path) -> Iterator[None]:
    """Raises SamplerError, with the remedy, if weights cannot be written to this folder."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(exchange).free / 2**20
        raise SamplerError(
            f"the weights cannot be written to {exchange}, which has {free:,.0f} MiB left ({error}): name a folder with "
            "room for them as sampler.weight_dir"
        ) from None


def raise_if_failed(call: Future[int]) -> None:
    """Raises the error of an engine that no longer takes what it is being sent."""
    if call.done():
        call.result()


def each_of(members: Iterable[Member], do: Callable[[Member], Any]) -> tuple[dict[Member, Any], dict[Member, EngineError]]:
    """Calls `do` on all members at the same time. Returns the results of those that succeed, and the errors of the rest."""
    results, errors = {}, {}
    for member, call in [(member, begin(partial(do, member))) for member in members]:
        try:
            results[member] = call.result()
        except Exception as error:  # possibly limited to this engine: the others continue
            errors[member] = blamed(error)
    return results, errors
