"""The two seams of a run: whoever samples, and whoever scores and learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from gspo.types import Batch, Completion, Outputs, Prompt, Rollout, Sampling, Stats


class SamplerError(RuntimeError):
    """A sampler that cannot go on: its engine is dead, hangs, or holds other weights than the policy."""


class Sampler(Protocol):
    """Samples completions, token ids in and token ids out, with each token's own log-probability mu. Both methods raise
    SamplerError where it cannot go on; after `load` did, `version` is the new one all the same.
    """

    @property
    def version(self) -> int:
        """That of the weights of now."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        n: int,
        sampling: Sampling,
        progress: Callable[[int], None] | None = None,
    ) -> list[Rollout]:
        """`n` completions to each prompt, in the order of the prompts, unscored.

        The same prompts, n, sampling and weights give the same completions. `progress` is told how many completions are
        done.
        """
        ...

    def load(self, policy: Policy, version: int) -> None:
        """Take over the policy's weights; tokens sampled from now on carry `version`."""
        ...


def key_of(seed: int | tuple[int, ...], prompt: int, completion: int) -> list[int]:
    """What fixes one completion. prompt, completion: their numbers."""
    return [seed, prompt, completion] if isinstance(seed, int) else [seed[prompt], completion]


def seed_of(seed: int | tuple[int, ...], prompt: int, completion: int) -> int:
    """The seed of one completion, for engines that take one a completion. prompt, completion: their numbers."""
    return int(np.random.SeedSequence(key_of(seed, prompt, completion)).generate_state(1, np.uint32)[0])


class Job:
    """A completion that is being sampled. future: of the completion; it raises SamplerError where the engine could not give
    it. now: tells what came of it so far.
    """

    def __init__(self, future: Future[Rollout], now: Callable[[], Rollout]) -> None:
        self.future, self._now = future, now

    @property
    def so_far(self) -> Rollout:
        """What came of it until the last weight update; whole once it is done."""
        return self._now()

    def done(self) -> bool:
        """Whether it ended, well or not."""
        return self.future.done()

    def result(self) -> Rollout:
        """The completion. Raises SamplerError where the engine could not give it."""
        return self.future.result()

    def cancel(self) -> None:
        """Gives it up."""
        self.future.cancel()


class Speaker(Protocol):
    """Whoever samples one completion at a time, many at once."""

    @property
    def version(self) -> int:
        """That of the weights of now."""
        ...

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Begins a completion: `so_far` holds the prompt alone."""
        ...


class StreamingSampler(Sampler, Speaker, Protocol):
    """A sampler that works while others do. A weight update interrupts its completions, and they go on with the new weights:
    each token keeps the likelihood and the version of those that sampled it; `begin` also goes on with a completion. probes:
    completions of the weights of now.
    """

    probes: list[Rollout]


class Policy(Protocol):
    """A causal language model that scores sampled tokens and can be trained.

    shares_prompts: whether a prompt shared by neighbouring completions is computed once. sparse: whether it is a mixture of
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

    def awake(self) -> AbstractContextManager[None]:
        """Around forward passes of a policy that rests elsewhere in between."""
        ...

    def parameters(self) -> Iterable[nn.Parameter]:
        """What the optimizer trains: the weights, and those of a critic."""
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


class Scorer(Protocol):
    """Gives each rollout its reward, or None and the reason (rewards/scorer.py)."""

    def score(self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None) -> list[Rollout]:
        """The same rollouts, scored."""
        ...

    def counts(self) -> dict[str, float]:
        """What was counted while scoring, since this was last asked."""
        ...


class PromptSource(Protocol):
    """Hands out prompts, pass after pass (data/prompts.py)."""

    position: int

    def take(self, k: int) -> list[Prompt]:
        """The next k prompts."""
        ...


Report = Callable[[str, int, int], None]


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

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, Any]:
        """Metrics of an update on `completions` from the statistics of all its micro-batches, which idle completions are not
        in.
        """
        ...
