"""How much one pass may read. Halved where memory does not suffice, at once or, on several ranks, in their next life."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch

from gspo.config.names import RESUME
from gspo.distributed import load_balance
from gspo.distributed.ranks import OneRank, Ranks
from gspo.learner import layout
from gspo.types import Completion

T = TypeVar("T")
OFFLOAD = 'train.offload_optimizer = true (with optimizer.name = "adamw")'
MORE = "more ranks (scale.ranks), or divide the experts of a mixture among them (scale.experts)"
Readers = list[list[int]]  # the numbers of the completions that each rank reads, ascending


class Part(NamedTuple):
    """A micro-batch: which completions, whether it counts, and whether another follows."""

    indices: list[int]
    counts: bool
    last: bool


class OutOfMemory(Exception):
    """Memory did not suffice on one of several ranks, and the others are in the middle of a pass that needs it. tokens: what
    micro-batches may have when all begin again. No RuntimeError: nobody in this process has a remedy.
    """

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(text)
        self.tokens = tokens


class MicroBatches:
    """Deals completions into micro-batches of at most `max_tokens` tokens, padding included.

    tell: hears of it where memory does not suffice. ranks: who reads them together with this process. smaller: why they are
    smaller than the settings say; "" where they are not. keep: writes down for the next life why this one ends.
    """

    def __init__(self, max_tokens: int, tell: Callable[[str], None] = lambda text: None, ranks: Ranks | None = None) -> None:
        self.max_tokens, self.tell, self.ranks = max_tokens, tell, ranks or OneRank()
        self.smaller = ""
        self.keep: Callable[[OutOfMemory], None] = lambda found: None
        self._reading: Sequence[Completion] = ()  # the micro-batch of now

    def readers(self, completions: Sequence[Completion], share: bool) -> Readers:
        """Which rank reads which of these completions (load_balance.py)."""
        return load_balance.split_evenly(completions, self.ranks.size, share)

    def deal(self, completions: Sequence[Completion], share: bool, readers: Readers | None = None) -> Iterator[Part]:
        """This rank's micro-batches, one after the other. share: a prompt that neighbours share is read once. readers: who
        reads which; None: as `readers` says.

        All ranks make as many passes, for each pass gathers weights from all: who has fewer micro-batches reads the shortest
        completion, which then does not count.
        """
        mine = (readers or self.readers(completions, share))[self.ranks.number]
        dealt = layout.micro_batches([completions[i] for i in mine], self.max_tokens, share)
        parts = [[mine[i] for i in part] for part in dealt]
        passes = max(self.ranks.gathered(len(parts)))
        shortest = min(range(len(completions)), key=lambda i: len(completions[i].tokens))
        for number in range(passes):
            part = parts[number] if number < len(parts) else [shortest]
            self._reading = [completions[i] for i in part]
            yield Part(part, number < len(parts), number == passes - 1)

    def attempt(
        self, work: Callable[[], T], completions: Sequence[Completion], share: bool, clear: Callable[[], None] = lambda: None
    ) -> T:
        """What `work`, which deals these completions, returns. Where memory does not suffice, `max_tokens` is halved and all
        is done again, after `clear`. Raises RuntimeError where one completion alone does not fit, and OutOfMemory on ranks.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                if self.ranks.size > 1 or len(self._reading) == 1:
                    raise self.short(self._reading, share) from error
                parts = layout.micro_batches(completions, self.max_tokens, share)
                most = max(layout.size([completions[i] for i in part], share) for part in parts)
            # The error is gone here, and with it the tensors that it held.
            clear()
            self.max_tokens = min(most, self.max_tokens) // 2
            self.tell(f"memory did not suffice: micro-batches have at most {self.max_tokens} tokens from here on")
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def short(self, completions: Sequence[Completion], share: bool) -> Exception:
        """What ends this life where memory does not suffice for this micro-batch: OutOfMemory, or RuntimeError for a
        completion alone, which no smaller micro-batch would make smaller.
        """
        read, several = layout.size(completions, share), self.ranks.size > 1
        if len(completions) > 1:
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
    """Around what needs as much memory however small micro-batches are. Raises RuntimeError with the remedies where it does
    not suffice: none of them is another micro-batch, so nothing is tried again.
    """
    try:
        yield
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        one = f"on a GPU set {OFFLOAD}, or start several ranks (scale.ranks)"
        several = "start more ranks (scale.ranks), or divide fewer copies of the model among them (scale.replicas)"
        raise RuntimeError(
            f"out of memory on rank {ranks.number} {what}, where smaller micro-batches change nothing: "
            f"{several if ranks.size > 1 else one}, and go on with {RESUME}, or train a smaller model"
        ) from error


def out_of_memory(error: RuntimeError) -> bool:
    """Whether this is a GPU's or a CPU's way to say that memory did not suffice."""
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED", "can't allocate memory"))
