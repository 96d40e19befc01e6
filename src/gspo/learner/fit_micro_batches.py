"""Fits the size of micro-batches to memory before the first step, by peak memory in trial passes without effect.

An out-of-memory rank restarts the whole run, so we measure first. The peaks of two small trials give the memory per token,
and by linear extrapolation that of the largest pass: a full micro-batch, or a single longer completion. No trial has run on
a GPU yet.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from gspo.distributed.ranks import Ranks
from gspo.learner import layout
from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, out_of_memory, outside_of_passes
from gspo.learner.optimizer import Optimizer
from gspo.types import Completion

PARTS = 8  # trials read 1 and 2 of this many parts of a full micro-batch
SPARE = 0.05  # share of free memory that stays unused, since fragmentation wastes some


class Meter:
    """Measures the memory of torch's current GPU, in bytes."""

    def room(self) -> float:
        """Memory that this process can still allocate: what is free, and torch's unused reserve."""
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def peak(self, work: Callable[[], None]) -> float:
        """Peak memory of `work` beyond what was allocated before it."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


class Found(NamedTuple):
    """Number of tokens that fit into a micro-batch, on the rank where the fewest do."""

    fits: int
    rank: int
    room: float  # its free memory, in bytes
    need: float  # for the largest pass, in bytes


def fitting(measure: Callable[[int], float], few: int, most: int, room: Callable[[], float], ranks: Ranks) -> Found:
    """Number of tokens that fit on every rank, at most `most`. Collective.

    Args:
        measure: Peak memory of an update with so many tokens.
        few: Tokens of the first trial; the second has twice as many.
        most: Tokens of the largest pass, at least 2.
        room: Free memory of this rank.
        ranks: All ranks.
    """
    low, high = measure(few), measure(2 * few)
    each = max(0.0, (high - low) / few)
    free = (1 - SPARE) * room()
    need = high + each * (most - 2 * few)
    count = most if need <= free else max(1, int(2 * few + (free - high) // each)) if each else 1
    every = ranks.gathered(Found(min(count, most), ranks.number, free, need))
    return min(every, key=lambda found: (found.fits, found.room - found.need))


def drawn(count: int, length: int, vocabulary: int) -> list[Completion]:
    """Completions of random tokens, so that the load of experts is realistic."""
    g = torch.Generator().manual_seed(0)
    sampled, zeros = torch.arange(length) > 0, torch.zeros(length - 1)
    rows = torch.randint(vocabulary, (count, length), generator=g)
    return [Completion(row, sampled, zeros, zeros, 0.0) for row in rows]


def update_peak(policy: Policy, optimizer: Optimizer, meter: Meter, completions: Sequence[Completion]) -> float:
    """Peak memory of two micro-batches, the second of which meets the gradients of the first. Leaves no state behind."""
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
    """Shrinks micro-batches until they fit into the memory of every rank. Collective; allocates AdamW's moments first.

    Raises OutOfMemory if a trial does not fit and a smaller one may, RuntimeError if no smaller trial is possible or the
    moments do not fit. longest: tokens of the longest completion, prompt included. If even one such completion would not
    fit, this warns instead of failing, since perhaps none gets that long.
    """
    with outside_of_passes("where AdamW's moments were made", micro_batches.ranks):
        optimizer.make_moments()

    def measure(tokens: int) -> float:
        rows = -(-tokens // longest)
        completions = drawn(rows, max(2, -(-tokens // rows)), vocabulary)
        try:
            return update_peak(policy, optimizer, meter, completions)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise micro_batches.short(completions, False, smaller=tokens > 2) from error

    few, most = max(1, micro_batches.max_tokens // PARTS), max(longest, micro_batches.max_tokens)
    found = fitting(measure, few, most, meter.room, micro_batches.ranks)
    if found.fits == most:
        return
    micro_batches.max_tokens = min(micro_batches.max_tokens, found.fits)
    risk = ", and the run may end where one completion is longer" if found.fits < longest else ""
    micro_batches.warn(
        f"rank {found.rank} has room for {found.room / 2**30:.3g} GiB, and {most} tokens in a pass need "
        f"{found.need / 2**30:.3g}, as trial passes show: micro-batches have at most {micro_batches.max_tokens} tokens{risk}"
    )
