"""Interfaces between the components of a run: samplers, learners, scorers, and the sources of prompts and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gspo.types import Agreement, Completion, Group, Prompt, Reading, Rollout, Sampling, Update


class SamplerError(RuntimeError):
    """The sampler cannot continue: its engine is dead, hangs, or holds other weights than the policy."""


class TeacherFailed(SamplerError):
    """The teacher's endpoint did not read a batch. As after the loss of a sampler, a resumed run samples it again."""


class RefreshFailed(RuntimeError):
    """refresh.source returned no new queries that can be trained on."""


class RewardsFailed(RuntimeError):
    """No completion of a batch got a reward: scoring is broken, and the run would only appear to train."""


class Weights(Protocol):
    """A handle on a learner's weights. Valid only until the next optimizer step, since nothing is copied."""

    version: int

    @property
    def temperature(self) -> float:
        """The sampling temperature at which `read` takes log-probabilities."""

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Name and full (unsharded) tensor of each weight of the language model."""

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The same weights layer by layer, with Hugging Face names and the dtypes that an engine loads."""

    def save(self, folder: str, *, merged: bool = False) -> None:
        """Write the model and its tokenizer in Hugging Face format: adapters on their own, or `merged` into a full model."""

    def read(self, completions: Sequence[Completion]) -> list[Reading]:
        """Readings of a few completions under these weights, with which a sampler verifies its own copy."""


class Sampler(Protocol):
    """Samples completions: token ids in; token ids out, each with its log-probability mu. `generate` and `load` raise
    SamplerError if the sampler cannot continue; `version` is the new one even after `load` has failed.
    """

    @property
    def version(self) -> int:
        """Version of the current weights."""

    @property
    def probes(self) -> list[Rollout]:
        """Completions that `load` sampled to verify the current weights; empty if it sampled none."""

    def counts(self) -> dict[str, float]:
        """Sampler metrics since the last call, such as failed engines."""

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:
        """Samples `n` unscored completions per prompt, in the order of the prompts: the same for the same prompts, n,
        sampling and weights. `progress` is called with the number of finished completions.
        """

    def load(self, weights: Weights) -> None:
        """Load these weights; tokens sampled from now on carry their version."""

    def rest(self) -> None:
        """Announce that nothing is sampled until the next `load`: the sampler may release memory until then."""


def key_of(seed: int | tuple[int, ...], prompt: int, completion: int) -> list[int]:
    """Random key of one completion, from the indices of its prompt and of the completion itself."""
    return [seed, prompt, completion] if isinstance(seed, int) else [seed[prompt], completion]


def seed_of(seed: int | tuple[int, ...], prompt: int, completion: int) -> int:
    """Seed of one completion, from its random key, for engines with a seed per completion."""
    return int(np.random.SeedSequence(key_of(seed, prompt, completion)).generate_state(1, np.uint32)[0])


class Job:
    """A completion that is being sampled. `future` raises SamplerError if the engine failed to deliver it."""

    def __init__(self, future: Future[Rollout], now: Callable[[], Rollout]) -> None:
        self.future, self._now = future, now

    @property
    def so_far(self) -> Rollout:
        """The partial completion as of the last weight update; the full completion once it is done."""
        return self._now()

    def done(self) -> bool:
        """Whether it has ended, successfully or not."""
        return self.future.done()

    def result(self) -> Rollout:
        """Waits for the completion. Raises SamplerError if the engine failed to deliver it."""
        return self.future.result()

    def cancel(self) -> None:
        """Cancels it."""
        self.future.cancel()


class StreamingCompleter(Protocol):
    """Samples single completions, many of them concurrently. `still` is held while the weights change."""

    still: AbstractContextManager[Any]

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Starts a completion: `so_far` contains only the prompt."""


class StreamingSampler(Sampler, StreamingCompleter, Protocol):
    """A sampler that runs concurrently with training. A weight update interrupts its completions, which then continue with
    the new weights; each token keeps the log-probability and the version of the weights that sampled it. `begin` also
    resumes a partial completion. A sampler of episodes continues their turns in the same way, but an unfinished episode
    cannot be saved: it starts over after a resume.
    """


class SupervisedLearner(Protocol):
    """Reads and trains a policy, in one process or on several ranks. Completions go in; sums, short lists and a handle on
    the weights come out. Per-token data of a batch stays on the rank that computed it.
    """

    def take(self, mini_batches: Sequence[Sequence[Completion]]) -> None:
        """Sets the batch that the next updates train on."""

    def update(self, number: int) -> Update:
        """One optimizer step on the mini-batch with this index, from those given to `take`."""

    def publish(self, version: int) -> Weights:
        """A handle on the current weights, under this version."""

    def save(self, folder: Path) -> None:
        """Writes `folder`/model in Hugging Face format and, beside it, all other state of the next update."""

    def resume(self, folder: Path) -> None:
        """Restores what `save` wrote; the policy must already hold the model."""


class Learner(SupervisedLearner, Protocol):
    """A learner that trains on rewards."""

    def override_lr(self, lr: float | None) -> None:
        """Replaces optimizer.lr and any reduction by rewinds, until None; the schedule still applies. It is in no
        checkpoint.
        """

    @property
    def clip(self) -> tuple[float, float] | None:
        """The current clip range, e_low and e_high; None for an algorithm without one."""

    def prepare(
        self, mini_batches: Sequence[Sequence[Completion]], recompute: bool, fresh: Sequence[Completion] = ()
    ) -> None:
        """Sets a batch, by mini-batch, and computes what its updates need besides the sampler's log-probabilities.
        recompute: take pi_old's from a forward pass of the current policy. fresh: if the batch is stale, some completions
        sampled by the current weights: they show the effect of numerics alone.
        """

    def enter(self, temperature: float, max_completion_length: int) -> None:
        """Sets the sampling settings of all completions that are read or trained on from now on. max_completion_length:
        tokens.
        """

    def finish(self) -> bool:
        """Ends a step: an automatic clip range moves. Returns whether the noise floor now bounds it from below."""

    def compare(self, completions: Sequence[Completion], batch: Sequence[Completion] = ()) -> Agreement:
        """Mismatch between sampler and trainer on completions sampled by the current weights. batch: those that the ratio is
        for, if they are others.
        """

    def read(self, completions: Sequence[Completion]) -> list[Tensor]:
        """The log-probabilities of the sampled tokens of a few completions, each [|y|]."""

    def rewind(self, folder: Path, lr_factor: float) -> None:
        """Restores what `save` wrote, with the model. The update count continues; the learning rate is multiplied by
        lr_factor.
        """


class Scorer(Protocol):
    """Gives each rollout its reward, or None and the reason (rewards/scorer.py). By default nothing is counted."""

    def score(
        self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None, groups: Sequence[Hashable] = ()
    ) -> list[Rollout]:
        """The same rollouts, scored. `progress` is called with the number of scored rollouts. groups: of each, and
        consecutive; else its prompt is its group.
        """

    def counts(self) -> dict[str, float]:
        """Scoring metrics since the last call."""
        return {}

    def at(self, step: int, steps: int) -> None:
        """Sets the number of finished steps and of all steps, for rewards that take them."""
        return


class RolloutSource(Protocol):
    """Groups for the trainer, batch after batch. By default nothing waits, and there is no state. `metrics`: sampling and
    scoring times of the last batch, in seconds, and counters. `unused`: for each completion that was sampled for it but is
    not in it, why it has no reward, or None.
    """

    metrics: dict[str, float]
    unused: Sequence[str | None]

    @property
    def stale(self) -> bool:
        """Whether the last batch may contain groups sampled by older weights than the current ones."""

    def __iter__(self) -> Iterator[Group]: ...

    def fresh(self) -> list[Rollout]:
        """Rollouts of the current weights, if the last batch is stale."""

    def drop(self, good: Mapping[str, Any]) -> None:
        """Discards rollouts that wait or are in progress, and how queries were answered since the state `good`."""
        return

    def state_dict(self) -> dict[str, Any]:
        """Position among the prompts and all waiting rollouts, in plain types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        return


Report = Callable[[str, int, int], None]
"""Called with the phase, the number of finished completions and their total."""
