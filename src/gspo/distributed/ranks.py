"""The processes that train together (ranks), and their collective operations. Rank 0 leads.

All ranks must call each method in the same order. Each call has a timeout, so a missing rank ends the others too.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from gspo.distributed.environment import rank_and_world_size

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
LOSS = re.compile(r"\[[^\]\n]*\bgloo/|Gloo |NCCL ")  # prefix of torch's process-group errors that have no type of their own
WAIT = timedelta(days=30)  # timeout for the next command: sampling may be slow. The heartbeat shows if rank 0 is alive


class RankLost(Exception):
    """Another rank is gone or timed out, or NCCL failed. Not a RuntimeError, so that no handler below the command line
    catches it.
    """


@contextmanager
def noticed() -> Iterator[None]:
    """Raises RankLost if a collective operation fails, also one inside a pass: another rank is gone, or NCCL failed."""
    try:
        yield
    except RankLost:
        raise
    except RuntimeError as error:
        if not is_loss(error):
            raise
        text = str(error).strip()
        cause = " ".join(text.partition("Last error:")[2].split())[:300]  # as NCCL tells it, such as a full /dev/shm
        cause = cause or text.partition("\n")[0]
        what = "NCCL failed" if text.startswith("NCCL error") else "another rank is gone or did not answer in time"
        number = dist.get_rank() if dist.is_initialized() else rank_and_world_size()[0]  # lost during initialization
        raise RankLost(f"rank {number}: {what} ({cause})") from error


def is_loss(error: BaseException) -> bool:
    """Whether this is how torch reports a lost rank. Its type counts too: an engine's error may quote the same text."""
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and bool(LOSS.match(str(error))))


class OneRank:
    """A process that trains alone: each collective returns its own value."""

    number, size = 0, 1

    def gathered(self, mine: T) -> list[T]:
        """See ProcessRanks."""
        return [mine]

    def to_leader(self, mine: Mapping[K, Tensor]) -> list[dict[K, Tensor]]:
        """See ProcessRanks."""
        return [dict(mine)]

    def from_leader(self, parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
        """See ProcessRanks."""
        return dict(parts[0])

    def any(self, mine: bool) -> bool:
        """See ProcessRanks."""
        return mine


class ProcessRanks:
    """This process, `number` of the `size` ranks that train together, in torch.distributed's default group. These methods
    communicate over gloo (host network); the model's tensors use the device backend. timeout: limit for each call, in
    seconds.
    """

    def __init__(self, timeout: float) -> None:
        self.number, self.size, self.timeout = dist.get_rank(), dist.get_world_size(), timeout
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        # Followers wait for rank 0 as long as it is alive; rank 0 applies the timeout to a follower that does not respond.
        self._commands = dist.new_group(backend="gloo", timeout=WAIT if self.number else timedelta(seconds=timeout))

    def gathered(self, mine: T) -> list[T]:
        """All-gather: the value of every rank, by rank. For small objects, a few numbers or words."""
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, mine, group=self._group)
        return every

    def to_leader(self, mine: Mapping[K, Tensor]) -> list[dict[K, Tensor]]:
        """Gather: the tensors of every rank, by rank, on rank 0; [] on other ranks."""
        kinds = self.gathered(_kinds(mine))
        if self.number:
            self._send(mine, 0)
            return []
        return [dict(mine), *(self._received(kind, number) for number, kind in enumerate(kinds) if number)]

    def from_leader(self, parts: Sequence[Mapping[K, Tensor]]) -> dict[K, Tensor]:
        """Scatter: returns this rank's element of rank 0's `parts`; ignored on other ranks."""
        kinds = self.gathered([] if self.number else [_kinds(part) for part in parts])[0]
        if self.number:
            return self._received(kinds[self.number], 0)
        for number, part in enumerate(parts[1:], 1):
            self._send(part, number)
        return dict(parts[0])

    def _send(self, tensors: Mapping[K, Tensor], to: int) -> None:
        for x in tensors.values():
            if x.numel():
                dist.send(x.detach().cpu().contiguous().flatten().view(torch.uint8), to, group=self._group)

    def _received(self, kinds: Mapping[K, tuple[torch.dtype, torch.Size]], number: int) -> dict[K, Tensor]:
        """The tensors of rank `number`, of these types and shapes."""
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in kinds.items()}
        for x in tensors.values():
            if x.numel():
                dist.recv(x.flatten().view(torch.uint8), number, group=self._group)
        return tensors

    def any(self, mine: bool) -> bool:
        """Logical-or all-reduce: whether `mine` is true on any rank."""
        flag = torch.tensor(float(mine))
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=self._group)
        return bool(flag)

    def loaded(self) -> None:
        """Ends model loading, whose duration differs between ranks: from now on `timeout` applies to all process groups."""
        with suppress(AttributeError):  # private torch API; if it is missing, the long timeout for loading stays in place
            for group in list(distributed_c10d._world.pg_map):
                if group is not self._commands:
                    distributed_c10d._set_pg_timeout(timedelta(seconds=self.timeout), group)

    def broadcast_command(self, command: Any = None) -> Any:
        """Broadcast: returns rank 0's `command`. The other ranks wait for it as long as rank 0 is alive."""
        box = [command]
        dist.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]


Ranks = OneRank | ProcessRanks


def _kinds(tensors: Mapping[K, Tensor]) -> dict[K, tuple[torch.dtype, torch.Size]]:
    """Dtype and shape of each tensor."""
    return {name: (x.dtype, x.shape) for name, x in tensors.items()}


def whole(x: Tensor) -> Tensor:
    """The full tensor, gathered from all ranks if it is sharded (a DTensor)."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def local(x: Tensor) -> Tensor:
    """The local shard of a tensor (a DTensor), or the tensor itself if it is not sharded."""
    return x.to_local() if hasattr(x, "to_local") else x
