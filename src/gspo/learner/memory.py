"""How much one pass may read. Halved where memory does not suffice, and here alone: processes must halve together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from gspo.learner import layout
from gspo.types import Completion

T = TypeVar("T")


class MicroBatches:
    """Deals completions into micro-batches of at most `max_tokens` tokens, padding included.

    tell: hears of it where memory does not suffice.
    """

    def __init__(self, max_tokens: int, tell: Callable[[str], None] = lambda text: None) -> None:
        self.max_tokens, self.tell = max_tokens, tell
        self._reading: Sequence[Completion] = ()  # the micro-batch of now

    def deal(self, completions: Sequence[Completion], share: bool) -> Iterator[list[int]]:
        """The indices of each micro-batch, one after the other. share: a prompt that neighbours share is read once."""
        for part in layout.micro_batches(completions, self.max_tokens, share):
            self._reading = [completions[i] for i in part]
            yield part

    def attempt(
        self, work: Callable[[], T], completions: Sequence[Completion], share: bool, clear: Callable[[], None] = lambda: None
    ) -> T:  # fmt: skip
        """What `work`, which deals these completions, returns. Where memory does not suffice, `max_tokens` is halved and all
        is done again, after `clear`. Raises RuntimeError where one completion alone does not fit.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                parts = layout.micro_batches(completions, self.max_tokens, share)
                most = max(layout.size([completions[i] for i in part], share) for part in parts)
                if len(self._reading) == 1:  # which no smaller micro-batch would make smaller
                    raise RuntimeError(
                        f"out of memory with one completion of {layout.size(self._reading, share)} tokens: set "
                        "train.gradient_checkpointing = true, on a GPU train.offload_optimizer = true, lower "
                        "rollout.max_completion_length, or train adapters (lora.rank)"
                    ) from error
            # The error is gone here, and with it the tensors that it held.
            clear()
            self.max_tokens = min(most, self.max_tokens) // 2
            self.tell(f"memory did not suffice: micro-batches have at most {self.max_tokens} tokens from here on")
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def out_of_memory(error: RuntimeError) -> bool:
    """Whether this is a GPU's or a CPU's way to say that memory did not suffice."""
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED", "can't allocate memory"))
