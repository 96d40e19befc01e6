"""Whether micro-batches have room, found before the first step: passes that count for nothing, and the peaks of memory.

A rank that runs out of memory ends the life of all, so it is better known beforehand. Peaks of few and of twice as many
completions say what so many more would need: all have the same length, so what a pass takes grows with their number.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from gspo.distributed.ranks import Ranks
from gspo.learner import layout
from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, out_of_memory, outside_of_passes
from gspo.learner.optimizer import Optimizer
from gspo.types import Completion

PARTS = 8  # trials of a completion alone read one and two such parts of it, those of a micro-batch one and two of its own
SPARE = 0.05  # share of the room that is left free: memory is given in blocks, which do not fill it


class Meter(Protocol):
    """Measures the memory of a device. In bytes."""

    def room(self) -> float:
        """What this process may still take."""
        ...

    def peak(self, work: Callable[[], None]) -> float:
        """How much more `work` has at its fullest than there was before it."""
        ...


class GPU:
    """Meter of the GPU that torch uses now."""

    def room(self) -> float:
        """What is free, and what torch holds in reserve."""
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def peak(self, work: Callable[[], None]) -> float:
        """As torch's allocator has counted it."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


class Found(NamedTuple):
    """How many completions fit into a micro-batch, and on the rank that has least: its number, its room in bytes, and what a
    whole micro-batch would need.
    """

    fits: int
    rank: int
    room: float
    need: float


def fitting(measure: Callable[[int], float], most: int, room: Callable[[], float], ranks: Ranks) -> Found:
    """How many completions of a length fit on every rank, of at most `most`, which is 2 or more.

    measure: the peak of an update of so many, which all ranks make together.
    """
    few = max(1, most // PARTS)
    low, high = measure(few), measure(2 * few)
    each = max(0.0, (high - low) / few)
    free = (1 - SPARE) * room()
    need = high + each * (most - 2 * few)
    count = most if need <= free else max(1, int(2 * few + (free - high) // each)) if each else 1
    every = ranks.gathered(Found(min(count, most), ranks.number, free, need))
    return min(every, key=lambda found: (found.fits, found.room - found.need))


def drawn(count: int, length: int, vocabulary: int) -> list[Completion]:
    """Completions of random tokens, so that experts get about as many as they would."""
    g = torch.Generator().manual_seed(0)
    sampled, zeros = torch.arange(length) > 0, torch.zeros(length - 1)
    rows = torch.randint(vocabulary, (count, length), generator=g)
    return [Completion(row, sampled, zeros, zeros, 0.0) for row in rows]


def update_peak(policy: Policy, optimizer: Optimizer, meter: Meter, completions: Sequence[Completion]) -> float:
    """The peak of an update of these completions and then of the same again: the second micro-batch has the gradients of the
    first beside it. Nothing of it is left.
    """
    batch = layout.build(completions)

    def work() -> None:
        for _ in range(2):
            out = policy.forward(batch, entropy=True, routing=True)
            out.logp.backward(torch.zeros_like(out.logp))

    devices = [torch.cuda.current_device()] if policy.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            return meter.peak(work)
        finally:
            optimizer.clear()
            gc.collect()


def make_room(
    policy: Policy, optimizer: Optimizer, micro_batches: MicroBatches, meter: Meter, longest: int, vocabulary: int
) -> None:
    """Makes micro-batches so small that every rank has memory for them. All ranks do it together; AdamW's moments are made
    first. longest: tokens of the longest completion with its prompt; where not even one would fit a warning says so, for
    perhaps none gets so long. vocabulary: of the model. Raises OutOfMemory where a trial does not fit that a smaller one may
    replace, RuntimeError where none does, or the moments do not.
    """
    with outside_of_passes("where AdamW's moments were made", micro_batches.ranks):
        optimizer.make_moments()

    def measure(count: int, length: int) -> float:
        completions = drawn(count, length, vocabulary)
        try:
            return update_peak(policy, optimizer, meter, completions)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise micro_batches.short(completions, False) from error

    part = max(2, -(-longest // PARTS))
    alone = fitting(lambda count: measure(1, count * part), PARTS, meter.room, micro_batches.ranks)
    if alone.fits < PARTS:
        micro_batches.max_tokens = min(micro_batches.max_tokens, alone.fits * part)
        micro_batches.tell(
            f"{describe_shortage(alone, f'one completion of {longest} tokens')}, as trial passes of shorter ones show: the "
            f"run ends where one gets so long. Micro-batches have at most {micro_batches.max_tokens} tokens"
        )
        return
    most = micro_batches.max_tokens // longest
    if most < 2:
        return
    found = fitting(lambda count: measure(count, longest), most, meter.room, micro_batches.ranks)
    if found.fits < most:
        micro_batches.max_tokens = found.fits * longest
        micro_batches.tell(
            f"{describe_shortage(found, 'an update by train.micro_batch_tokens')}, as trial passes show: micro-batches have "
            f"at most {micro_batches.max_tokens} tokens"
        )


def describe_shortage(found: Found, what: str) -> str:
    """In words that `what` does not fit."""
    return f"rank {found.rank} has room for {found.room / 2**30:.3g} GiB, and {what} needs {found.need / 2**30:.3g}"
