"""The weights of a policy as whoever samples gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, outside_of_passes
from gspo.learner.scoring import read, where_read
from gspo.types import Completion, Reading

T = TypeVar("T")
PROOF_TOKENS = 16384  # most that a micro-batch of a proof reads
GIVEN = "while it handed weights to the sampler"


class PolicyWeights:
    """ports.Weights of a policy in this process: nothing is copied until somebody does."""

    def __init__(self, policy: Policy, version: int, micro_batches: MicroBatches | None = None) -> None:
        self.policy, self.version = policy, version
        self._micro_batches = micro_batches or MicroBatches(PROOF_TOKENS)

    @property
    def temperature(self) -> float:
        """The one at which they are read."""
        return self.policy.temperature

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight by its name."""
        return self._given(self.policy.weights())

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """Each layer as an engine reads it."""
        return self._given(self.policy.layers())

    def _given(self, each: Iterable[T]) -> Iterator[T]:
        every = iter(each)
        while True:
            with outside_of_passes(GIVEN, self._micro_batches.ranks):
                item = next(every, None)
            if item is None:
                return
            yield item

    def save(self, folder: str, merged: bool = False) -> None:
        """Writes the model and its tokenizer in Hugging Face format; adapters alone, or `merged` into a whole model."""
        with outside_of_passes(GIVEN, self._micro_batches.ranks):
            self.policy.save(folder, merged=merged)

    def read(self, completions: Sequence[Completion]) -> list[Reading]:
        """What these weights say of a few completions, with the experts that sampled them where they are known."""
        known = all(completion.routes is not None for completion in completions)
        follows = self.policy.sparse and self._micro_batches.ranks.gathered(known)[0]
        readers = self._micro_batches.readers(completions, self.policy.shares_prompts)
        if follows:
            completions = where_read(completions, readers, self._micro_batches.ranks)
        return read(self.policy, completions, self._micro_batches, routing=follows, replay=follows, readers=readers)
