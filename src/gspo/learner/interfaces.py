"""Interfaces inside a learner: the policy and the objective."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from gspo.types import Batch, Completion, Outputs, Stats


class Policy(Protocol):
    """A causal language model that scores sampled tokens and can be trained."""

    temperature: float  # of sampling, at which log-probabilities are computed
    shares_prompts: bool  # whether a prompt shared by neighbouring completions is computed once
    sparse: bool  # whether it is a mixture of experts whose routing can be observed

    @property
    def device(self) -> torch.device:
        """The device of the output log-probabilities."""

    def forward(self, batch: Batch, *, entropy: bool = False, routing: bool = False, replay: bool = False) -> Outputs:
        """One forward pass: log-probabilities of the batch's sampled tokens, and the requested outputs, with gradients if
        autograd is on. replay: every router uses the experts in batch.routes, weighted by its own current logits.
        """

    def on_device(self) -> AbstractContextManager[None]:
        """Context for forward passes of a policy that is offloaded between them."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """The parameters that the optimizer trains: the weights, and those of a critic."""

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Name and full tensor (on rank 0) of each weight of the language model, for a sampler."""

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The same weights layer by layer, with the names and dtypes that an engine loads."""

    def state_dict(self) -> dict[str, Any]:
        """Trained state besides the weights (a critic); {} if there is none."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""

    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Raises RuntimeError if forward passes use other weights than those that the optimizer updates, `trained`."""

    def save_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Save the optimizer's moments under the names of the weights; each rank writes its shards."""

    def load_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Load what `save_moments` wrote, on any number of ranks."""

    def load(self, folder: str) -> None:
        """Load the weights that `save` wrote."""

    def save(self, folder: str, *, merged: bool = False) -> None:
        """Write the model and its tokenizer in Hugging Face format: adapters on their own, or `merged` into the model."""


class Objective(Protocol):
    """The objective that an update minimises. By default nothing is condensed, and there is no state."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """The divisor of the sum of all terms of this update."""

    def idle(self, completion: Completion) -> bool:
        """Whether the gradient of its terms is zero whatever the policy's outputs are."""

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """The terms to be summed, [S] or [N], and detached statistics, each [S] or [N]."""

    def condensed(self, stats: Stats) -> Stats:
        """The statistics of all micro-batches of a rank, with sums [1, ...] in place of those of which `summary` and `watch`
        need only the sum. Statistics of several ranks are concatenated.
        """
        return stats

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, Any]:
        """Metrics of an update on `completions`, from the condensed statistics of all its micro-batches. The statistics do
        not include idle completions; {} if all are idle.
        """

    def watch(self, stats: Stats) -> None:
        """Receives the statistics of each update, on the rank that has them."""
        return

    def state_dict(self) -> dict[str, Any]:
        """State that it has accumulated over updates."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        return
