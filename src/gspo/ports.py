"""The two seams of a run: whoever samples, and whoever scores and learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from gspo.types import Batch, Outputs, Prompt, Rollout, Sampling


class SamplerError(RuntimeError):
    """A sampler that cannot go on: its engine is dead, hangs, or holds other weights than the policy."""


class Sampler(Protocol):
    """Samples replies, token ids in and token ids out, with each token's own log-probability mu. Both methods raise
    SamplerError where it cannot go on; after `load` did, `version` is the new one all the same.
    """

    version: int

    def generate(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Callable[[int], None] | None = None,
    ) -> list[Rollout]:
        """`n` replies to each prompt, in the order of the prompts, unscored.

        The same prompts, n, sampling and weights give the same replies. `progress` is told how many replies are done.
        """
        ...

    def load(self, policy: Policy, version: int) -> None:
        """Take over the policy's weights; tokens sampled from now on carry `version`."""
        ...


class Policy(Protocol):
    """A causal language model that scores sampled tokens and can be trained.

    shares_prompts: whether a prompt shared by neighbouring replies is computed once. sparse: whether it is a mixture of
    experts whose routing can be seen.
    """

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

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimiser trains: the weights, and those of a critic."""
        ...

    def weights(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The language model's weights by name, which a sampler takes over."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What is trained beside the weights (a critic); {} where nothing is."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        ...

    def load(self, folder: str) -> None:
        """Take over the weights that `save` wrote."""
        ...

    def save(self, folder: str) -> None:
        """Write the model (safetensors) and its tokenizer in Hugging Face format."""
        ...
