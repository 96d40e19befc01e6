"""The seams inside a learner: what is trained, and what is minimised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gspo.types import Batch, Completion, Outputs, Stats


class Policy(Protocol):
    """A causal language model that scores sampled tokens and can be trained.

    shares_prompts: whether a prompt shared by neighbouring completions is computed once. sparse: whether it is a mixture of
    experts whose routing can be seen. temperature: at which log-probabilities are taken.
    """

    temperature: float
    shares_prompts: bool
    sparse: bool

    @property
    def device(self) -> torch.device:
        """Where log-probabilities come out."""
        ...

    def forward(self, batch: Batch, *, entropy: bool = False, routing: bool = False, replay: bool = False) -> Outputs:
        """One forward pass: the log-probabilities of the batch's sampled tokens, and what else is asked for.

        Gradients of the log-probabilities flow when autograd is on. replay: every router takes the experts of
        batch.routes, weighted by its own logits of today.
        """
        ...

    def awake(self) -> AbstractContextManager[None]:
        """Around forward passes of a policy that rests elsewhere in between."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimizer trains: the weights, and those of a critic."""
        ...

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """The language model's weights by name, whole, which a sampler takes over; in shards, on the rank that leads."""
        ...

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The same a layer at a time, by the names and in the types in which an engine reads them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What is trained beside the weights (a critic); {} where nothing is."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        ...

    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Raises RuntimeError where passes read other weights than the optimizer changes. trained: its parameters."""
        ...

    def save_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Write the moments of an optimizer of these weights by their names, each rank its shards."""
        ...

    def load_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Take over what `save_moments` wrote, on as many ranks or on others."""
        ...

    def load(self, folder: str) -> None:
        """Take over the weights that `save` wrote."""
        ...

    def save(self, folder: str, *, merged: bool = False) -> None:
        """Write the model (safetensors) and its tokenizer in Hugging Face format; adapters alone, or `merged` into it."""
        ...


class Objective(Protocol):
    """What an update minimises."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """What the sum of all terms of this update is divided by."""
        ...

    def idle(self, completion: Completion) -> bool:
        """Whether its terms have zero gradient whatever the policy says of it."""
        ...

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """The terms to be summed, [S] or [N], and detached statistics, each [S] or [N]."""
        ...

    def condensed(self, stats: Stats) -> Stats:
        """The statistics of all micro-batches of a rank, with sums [1, ...] in the place of what `summary` and `watch` need
        nothing else of. Those of several ranks are put one after the other.
        """
        ...

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, Any]:
        """Metrics of an update on `completions` from the condensed statistics of all its micro-batches, which idle
        completions are not in.
        """
        ...

    def watch(self, stats: Stats) -> None:
        """Is shown each update, where the statistics are."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What it has learned from updates."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        ...
