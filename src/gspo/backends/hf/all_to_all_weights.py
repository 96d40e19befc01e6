"""Gathers sharded weights on the ranks that need them: each rank receives exactly the weights that it requests.

A rank holds consecutive rows of each weight. Replicas of the model hold the same rows, and the nearest replica sends them.
The exchange is one all-to-all of bytes over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gspo.distributed.ranks import local
from gspo.learner.optimizer import shard_of

T = TypeVar("T")


class RowRange(NamedTuple):
    """The rows `begin` to `end` of a weight, and the ranks that hold them."""

    begin: int
    end: int
    ranks: tuple[int, ...]

    def sender(self, to: int) -> int:
        """The rank that sends these rows to rank `to`: `to` itself if it holds them, else the nearest holder."""
        return min(self.ranks, key=lambda rank: abs(rank - to))


class Gathering:
    """Weights by name, and which ranks hold which rows. Constructor and `exchange` are collective calls."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.weights = dict(weights)
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        every = all_gather({name: rows_of(p) for name, p in self.weights.items()})
        self.rows: dict[str, list[RowRange]] = {}
        for name in self.weights:
            holders: dict[tuple[int, int], list[int]] = {}
            for rank, held in enumerate(every):
                holders.setdefault(held[name], []).append(rank)
            self.rows[name] = [RowRange(*at, tuple(ranks)) for at, ranks in holders.items() if at[0] < at[1]]

    def exchange(
        self, wanted: Sequence[Sequence[str]], types: Mapping[str, torch.dtype], device: torch.device
    ) -> dict[str, Tensor]:
        """All-to-all: returns the weights that this rank requested, unsharded, on `device`. wanted: the names that each rank
        requests, in rank order; types: the dtype in which a weight is sent. Both are the same on all ranks.
        """
        ranks, mine = range(self.size), wanted[self.number]
        sent_parts = [[] if to == self.number else self._parts(wanted[to], self.number, to) for to in ranks]
        received_parts = [self._parts(mine, rank, self.number) for rank in ranks]
        out_sizes = [sum(self._bytes(*part, types) for part in parts) for parts in sent_parts]
        in_sizes = [sum(self._bytes(*part, types) for part in parts) for parts in received_parts]
        in_sizes[self.number] = 0
        shard_device = next(iter(self.weights.values())).device
        sent, at = torch.empty(sum(out_sizes), dtype=torch.uint8, device=shard_device), 0
        for name, _ in chain.from_iterable(sent_parts):  # one at a time: a layer may be large
            data = self._local(name, types)
            sent[at : at + len(data)] = data
            at += len(data)
        received = torch.empty(sum(in_sizes), dtype=torch.uint8, device=shard_device)
        dist.all_to_all_single(received, sent, in_sizes, out_sizes)
        del sent
        whole = {name: torch.empty(self.weights[name].shape, dtype=types[name], device=device) for name in mine}
        at = 0
        for rank, parts in enumerate(received_parts):
            for name, rows in parts:
                if rank == self.number:
                    data = self._local(name, types)
                else:
                    data = received[at : at + self._bytes(name, rows, types)]
                    at += len(data)
                target = whole[name][rows.begin : rows.end]
                # The clone aligns the bytes: a slice may start at an offset that the dtype does not allow.
                target.copy_(data.clone().view(types[name]).view(target.shape))
        return whole

    def _parts(self, names: Sequence[str], sender: int, to: int) -> list[tuple[str, RowRange]]:
        """The rows of these weights that rank `sender` sends to rank `to`."""
        return [(name, rows) for name in names for rows in self.rows[name] if rows.sender(to) == sender]

    def _bytes(self, name: str, rows: RowRange, types: Mapping[str, torch.dtype]) -> int:
        return (rows.end - rows.begin) * self.weights[name].shape[1:].numel() * types[name].itemsize

    def _local(self, name: str, types: Mapping[str, torch.dtype]) -> Tensor:
        """The bytes of this rank's rows."""
        return local(self.weights[name].detach()).to(types[name]).contiguous().flatten().view(torch.uint8)


def all_gather(mine: T) -> list[T]:
    """The value of every rank, in rank order."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def rows_of(p: Tensor) -> tuple[int, int]:
    """The rows [begin, end) of a weight that this rank holds."""
    numbers: Any = torch.arange(len(p))
    rows = shard_of(numbers, p).to_local() if isinstance(p, DTensor) else numbers  # type: ignore[attr-defined]
    if not len(rows):
        return 0, 0
    begin, end = int(rows[0]), int(rows[-1]) + 1
    assert end - begin == len(rows), "a shard is rows that follow one another"
    return begin, end
