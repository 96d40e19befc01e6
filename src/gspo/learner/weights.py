"""A handle on a policy's weights for samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from torch import Tensor

from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, outside_of_passes
from gspo.learner.scoring import read_as_sampled
from gspo.types import Completion, Reading

T = TypeVar("T")
PROOF_TOKENS = 16384  # limit of a micro-batch in the verification of weights


def each_inside(items: Iterable[T], context: Callable[[], AbstractContextManager[None]]) -> Iterator[T]:
    """Iterates over the items. Each is made inside the context, and used outside of it."""
    every = iter(items)
    while True:
        with context():
            item = next(every, None)
        if item is None:
            return
        yield item


class PolicyWeights:
    """gspo.interfaces.Weights of a policy in this process. Copies nothing itself."""

    def __init__(self, policy: Policy, version: int, micro_batches: MicroBatches | None = None) -> None:
        self.policy, self.version = policy, version
        self._micro_batches = micro_batches or MicroBatches(PROOF_TOKENS)

    @property
    def temperature(self) -> float:
        """The sampling temperature at which `read` takes log-probabilities."""
        return self.policy.temperature

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each weight."""
        return each_inside(self.policy.weights(), self._handover)

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """The weights of each layer, as an engine loads them."""
        return each_inside(self.policy.layers(), self._handover)

    def _handover(self) -> AbstractContextManager[None]:
        return outside_of_passes("while it handed weights to the sampler", self._micro_batches.ranks)

    def save(self, folder: str, merged: bool = False) -> None:
        """Writes the model and its tokenizer in Hugging Face format: adapters alone, or `merged` into a full model."""
        with self._handover():
            self.policy.save(folder, merged=merged)

    def read(self, completions: Sequence[Completion]) -> list[Reading]:
        """Readings of a few completions under these weights, replaying the experts that sampled them if all are known."""
        return read_as_sampled(self.policy, completions, self._micro_batches)
