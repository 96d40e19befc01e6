"""The processes that learn together, and what they say to one another. They are numbered from 0; number 0 leads.

All ranks call each method in the same order, with a time limit: one that is missing ends the others too.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from gspo.distributed.environment import rank_and_world_size

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
LOSS = re.compile(r"\[[^\]\n]*\bgloo/|Gloo |NCCL ")  # begins torch's errors of groups that have no type of their own
WAIT = timedelta(days=30)  # for the next command: sampling may take long. Whether the leader runs shows in its heartbeat


class RankLost(Exception):
    """Another rank is gone, or did not answer in time. No RuntimeError: nobody but the command line has a remedy."""


@contextmanager
def noticed() -> Iterator[None]:
    """Around what ranks do together. Raises RankLost where another is gone, in the middle of a pass too."""
    try:
        yield
    except RankLost:
        raise
    except RuntimeError as error:
        if not is_loss(error):
            raise
        first = str(error).strip().partition("\n")[0]
        number = dist.get_rank() if dist.is_initialized() else rank_and_world_size()[0]  # it may go while they meet
        raise RankLost(f"rank {number}: another rank is gone or did not answer in time ({first})") from error


def is_loss(error: BaseException) -> bool:
    """Whether this is how torch says that a rank is gone. Another error may quote that, of an engine for example."""
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and bool(LOSS.match(str(error))))


class Ranks(Protocol):
    """This process among those that learn together. number: which it is. size: how many there are."""

    number: int
    size: int

    def gathered(self, mine: T) -> list[T]:
        """What every rank says, by number: a few numbers or words."""
        ...

    def to_leader(self, mine: Mapping[K, Tensor]) -> list[dict[K, Tensor]]:
        """The tensors of every rank, by number, for the one that leads; [] for the others."""
        ...

    def from_leader(self, parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
        """This rank's of the `parts` of the one that leads: tensors for each rank, by number. What others give is not
        looked at.
        """
        ...

    def any(self, mine: bool) -> bool:
        """Whether it holds on any rank."""
        ...


class OneRank:
    """A process that learns alone."""

    number, size = 0, 1

    def gathered(self, mine: T) -> list[T]:
        """What it says itself."""
        return [mine]

    def to_leader(self, mine: Mapping[K, Tensor]) -> list[dict[K, Tensor]]:
        """Its own, since it leads."""
        return [dict(mine)]

    def from_leader(self, parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
        """Its own."""
        return dict(parts[0])

    def any(self, mine: bool) -> bool:
        """Whether it holds."""
        return mine


class ProcessRanks:
    """Ranks in processes of their own, of torch.distributed's default group. What they say goes over the network of the
    hosts (gloo), tensors of the model over that of the devices. timeout: seconds that they wait for one another.
    """

    def __init__(self, timeout: float) -> None:
        self.number, self.size, self.timeout = dist.get_rank(), dist.get_world_size(), timeout
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        # The others wait for the leader as long as it lives; it does not wait long for one that does not listen.
        self._commands = dist.new_group(backend="gloo", timeout=WAIT if self.number else timedelta(seconds=timeout))

    def gathered(self, mine: T) -> list[T]:
        """What every rank says, by number: a few numbers or words."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, mine, group=self._group)
        return every

    def to_leader(self, mine: Mapping[K, Tensor]) -> list[dict[K, Tensor]]:
        """The tensors of every rank, by number, for the one that leads; [] for the others."""
        kinds = self.gathered(_kinds(mine))
        if self.number:
            self._send(mine, 0)
            return []
        return [dict(mine), *(self._received(kind, number) for number, kind in enumerate(kinds) if number)]

    def from_leader(self, parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
        """This rank's of the leader's `parts`."""
        kinds = self.gathered([] if self.number else [_kinds(part) for part in parts])[0]
        if self.number:
            return self._received(kinds[self.number], 0)
        for number, part in enumerate(parts):
            if number:
                self._send(part, number)
        return dict(parts[0])

    def _send(self, tensors: Mapping[K, Tensor], to: int) -> None:
        for x in tensors.values():
            if x.numel():
                dist.send(x.detach().cpu().contiguous().flatten().view(torch.uint8), to, group=self._group)

    def _received(self, kinds: Mapping[K, tuple[torch.dtype, torch.Size]], number: int) -> dict[K, Tensor]:
        """What rank `number` sends. kinds: of each tensor its dtype and shape."""
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in kinds.items()}
        for x in tensors.values():
            if x.numel():
                dist.recv(x.flatten().view(torch.uint8), number, group=self._group)
        return tensors

    def any(self, mine: bool) -> bool:
        """Whether it holds on any rank."""
        flag = torch.tensor(float(mine))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def loaded(self) -> None:
        """Says that the model is loaded, for which ranks need very different times: from here on they wait for each other as
        long as `timeout` says, in the groups too that the model has made.
        """
        with suppress(AttributeError):  # torch's own names; without them the long limit of loading stays
            for group in list(distributed_c10d._world.pg_map):
                if group is not self._commands:
                    distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout), group)

    def told(self, command: Any = None) -> Any:
        """What the leader says, who alone gives it here. The others wait for it as long as the leader lives."""
        box = [command]
        dist.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]


def _kinds(tensors: Mapping[K, Tensor]) -> dict[K, tuple[torch.dtype, torch.Size]]:
    """Of each tensor its dtype and shape."""
    return {name: (x.dtype, x.shape) for name, x in tensors.items()}


def whole(x: Tensor) -> Tensor:
    """All of a tensor, of which each rank may hold a shard (a DTensor)."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def local(x: Tensor) -> Tensor:
    """What lies here of a tensor, of which each rank may hold a shard (a DTensor)."""
    return x.to_local() if hasattr(x, "to_local") else x
