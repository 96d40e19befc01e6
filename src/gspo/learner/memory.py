"""Limits the size of a micro-batch. Halves it when out of memory: immediately on one rank, after a restart on several."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from gspo.config.names import RESUME
from gspo.distributed import load_balance
from gspo.distributed.ranks import OneRank, Ranks
from gspo.learner import layout
from gspo.types import Completion

T = TypeVar("T")
OFFLOAD = 'train.offload_optimizer = true (with optimizer.name = "adamw")'
MORE = "more ranks (scale.ranks), or divide the experts of a mixture among them (scale.expert_parallel)"
Readers = list[list[int]]  # indices of the completions that each rank reads, ascending


class OutOfMemory(Exception):
    """One of several ranks ran out of memory while the others are in a pass that needs it. Not a RuntimeError, so that no
    retry handler in this process catches it. tokens: micro-batch limit after the restart.
    """

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(text)
        self.tokens = tokens


class MicroBatches:
    """Splits completions into micro-batches of at most `max_tokens` tokens, padding included. warn: called when memory runs
    out. keep: stores the reason why one of several ranks ends, for the restarted run.
    """

    def __init__(
        self,
        max_tokens: int,
        warn: Callable[[str], None] = lambda text: None,
        ranks: Ranks | None = None,
        keep: Callable[[OutOfMemory], None] = lambda found: None,
    ) -> None:
        self.max_tokens, self.warn, self.ranks, self.keep = max_tokens, warn, ranks or OneRank(), keep
        self._reading: Sequence[Completion] = ()  # the current micro-batch

    def readers(self, completions: Sequence[Completion], share: bool) -> Readers:
        """Which rank reads which of these completions (load_balance.py)."""
        return load_balance.split_evenly(completions, self.ranks.size, share)

    def deal(
        self, completions: Sequence[Completion], share: bool, readers: Readers | None = None
    ) -> Iterator[tuple[list[int], bool]]:
        """Yields this rank's micro-batches: the indices of their completions, and whether their results count.

        All ranks make the same number of passes, since each pass gathers weights from all of them: a rank with fewer
        micro-batches reads the shortest of all `completions` instead, whose result does not count.
        """
        mine = (readers or self.readers(completions, share))[self.ranks.number]
        dealt = layout.micro_batches([completions[i] for i in mine], self.max_tokens, share)
        parts = [[mine[i] for i in part] for part in dealt]
        passes = max(self.ranks.gathered(len(parts)))
        shortest = min(range(len(completions)), key=lambda i: len(completions[i].tokens), default=0)
        for number in range(passes):
            part = parts[number] if number < len(parts) else [shortest]
            self._reading = [completions[i] for i in part]
            yield part, number < len(parts)

    def attempt(
        self, work: Callable[[], T], completions: Sequence[Completion], share: bool, clear: Callable[[], None] = lambda: None
    ) -> T:
        """Returns the result of `work`, which deals these completions, retrying with half of `max_tokens` (after `clear`)
        when out of memory. Raises RuntimeError if a single completion does not fit, OutOfMemory if there are several ranks.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if self.ranks.size > 1 or len(self._reading) == 1:
                    raise self.short(self._reading, share, smaller=len(self._reading) > 1) from error
                parts = layout.micro_batches(completions, self.max_tokens, share)
                most = max(layout.size([completions[i] for i in part], share) for part in parts)
            # Outside of the handler: the error, and the tensors that its traceback references, are released here.
            clear()
            self.max_tokens = min(most, self.max_tokens) // 2
            self.warn(f"out of memory: micro-batches have at most {self.max_tokens} tokens from here on")
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def short(self, completions: Sequence[Completion], share: bool, smaller: bool) -> Exception:
        """The error for a pass that ran out of memory: OutOfMemory if a smaller one is possible, else RuntimeError."""
        read, several = layout.size(completions, share), self.ranks.size > 1
        if smaller:
            text = f"rank {self.ranks.number} was out of memory with a micro-batch of {read} tokens"
            found = OutOfMemory(text, min(read, self.max_tokens) // 2)
            self.keep(found)
            return found
        offload = "" if several else f"on a GPU {OFFLOAD}, "
        last = f"start {MORE}" if several else "train adapters (lora.rank)"
        return RuntimeError(
            f"out of memory with one completion of {read} tokens: set train.gradient_checkpointing = true, {offload}lower "
            f"rollout.max_completion_length, or {last}"
        )


@contextmanager
def outside_of_passes(what: str, ranks: Ranks) -> Iterator[None]:
    """Work whose memory does not depend on micro-batches: RuntimeError with other remedies if it runs out."""
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        one = f"on a GPU set {OFFLOAD}, or start several ranks (scale.ranks)"
        several = (
            "start more ranks (scale.ranks), or divide fewer copies of the model among them (scale.data_parallel_replicas)"
        )
        raise RuntimeError(
            f"out of memory on rank {ranks.number} {what}, where smaller micro-batches change nothing: "
            f"{several if ranks.size > 1 else one}, and go on with {RESUME}, or train a smaller model"
        ) from error


def out_of_memory(error: RuntimeError) -> bool:
    """Whether this is an out-of-memory error of a GPU or a CPU."""
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED", "can't allocate memory"))
