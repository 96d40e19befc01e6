"""The seams of a run: whoever samples, whoever scores and learns, and what stands between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from gspo.config.stages import StageConfig
from gspo.types import Agreement, Completion, Group, Prompt, Reading, Rollout, Sampling, Update


class SamplerError(RuntimeError):
    """A sampler that cannot go on: its engine is dead, hangs, or holds other weights than the policy."""


class RefreshFailed(RuntimeError):
    """refresh.source gave no new queries that can be trained on."""


class RewardsFailed(RuntimeError):
    """No completion of a batch got a reward: what scores them is broken, and a run would only look as if it trained."""


class Weights(Protocol):
    """A handle on a learner's weights. Whoever gets it uses it at once: the next update changes them. temperature: the one
    at which they are read.
    """

    version: int

    @property
    def temperature(self) -> float:
        """The sampling temperature at which `read` takes log-probabilities."""
        ...

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Each weight of the language model by its name, whole."""
        ...

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The same a layer at a time, by the names of a Hugging Face folder, in the types in which an engine reads them."""
        ...

    def save(self, folder: str, *, merged: bool = False) -> None:
        """Write the model and its tokenizer in Hugging Face format; adapters alone, or `merged` into a whole model."""
        ...

    def read(self, completions: Sequence[Completion]) -> list[Reading]:
        """What these weights say of a few completions, so that a sampler can prove that it holds the same."""
        ...


class Sampler(Protocol):
    """Samples completions, token ids in and token ids out, with each token's own log-probability mu. Both methods raise
    SamplerError where it cannot go on; after `load` did, `version` is the new one all the same.
    """

    @property
    def version(self) -> int:
        """That of the weights of now."""
        ...

    @property
    def probes(self) -> list[Rollout]:
        """Completions of the present weights, where `load` has sampled some to prove them; else none."""
        ...

    def counts(self) -> dict[str, float]:
        """Metrics of what samples, since this was last asked: of engines that failed, where there are any."""
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

    def load(self, weights: Weights) -> None:
        """Take over these weights; tokens sampled from now on carry their version."""
        ...

    def rest(self) -> None:
        """Nothing is sampled until the next `load`: memory may be given back until then."""
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


class StreamingCompleter(Protocol):
    """Whoever samples one completion at a time, many at once. still: held while the weights change."""

    still: AbstractContextManager[Any]

    @property
    def version(self) -> int:
        """That of the weights of now."""
        ...

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Begins a completion: `so_far` holds the prompt alone."""
        ...


class StreamingSampler(Sampler, StreamingCompleter, Protocol):
    """A sampler that works while others do. A weight update interrupts its completions, and they go on with the new weights:
    each token keeps the likelihood and the version of those that sampled it; `begin` also goes on with a completion. One of
    whole episodes goes on with the turns; an episode that has not ended cannot be saved, and begins again.
    """


class SupervisedLearner(Protocol):
    """Whoever scores and learns, in one process or in many. Completions go in; sums, short lists and a handle on the weights
    come out. What there is of every token of a batch stays where it was computed.
    """

    def take(self, mini_batches: Sequence[Sequence[Completion]]) -> None:
        """Takes over the batch that the next updates learn from."""
        ...

    def update(self, number: int) -> Update:
        """One optimizer step on the mini-batch of that number, of those that were taken over."""
        ...

    def publish(self, version: int) -> Weights:
        """A handle on the weights as they are now, under this version."""
        ...

    def save(self, folder: Path) -> None:
        """Writes `folder`/model in Hugging Face format, and beside it what else the next update depends on."""
        ...

    def resume(self, folder: Path) -> None:
        """Goes on from what `save` wrote, with a policy that holds the model already."""
        ...


class Learner(SupervisedLearner, Protocol):
    """One that learns from rewards. lr_override: the learning rate from here on, in the place of optimizer.lr and of what
    rewinds have made of it; None: those. The schedule is kept. No checkpoint holds it.
    """

    lr_override: float | None

    @property
    def clip(self) -> tuple[float, float] | None:
        """The clip range in force, e_low and e_high; None for an algorithm without one."""
        ...

    def prepare(
        self, mini_batches: Sequence[Sequence[Completion]], recompute: bool, fresh: Sequence[Completion] = ()
    ) -> None:
        """Takes over a batch and fills in what its updates need beside the sampler's likelihoods.

        recompute: pi_old's come from a pass of the policy as it is now. fresh: where the batch is of older weights, some
        completions that the present ones sampled: they show what numerics alone do.
        """
        ...

    def enter(self, temperature: float, max_completion_length: int) -> None:
        """What is read and learned from here on was sampled so. max_completion_length: in tokens."""
        ...

    def finish(self) -> bool:
        """Ends a step: a clip range that sets itself moves. Returns whether the noise floor now holds it up."""
        ...

    def compare(self, completions: Sequence[Completion]) -> Agreement:
        """How far sampler and trainer disagree, by completions that the present weights sampled."""
        ...

    def read(self, completions: Sequence[Completion]) -> list[Tensor]:
        """The log-probabilities of the sampled tokens of a few completions, each [|y|]."""
        ...

    def rewind(self, folder: Path, lr_factor: float) -> None:
        """Takes over what `save` wrote, the model too. The count of updates goes on, the learning rate times lr_factor."""
        ...


class Scorer(Protocol):
    """Gives each rollout its reward, or None and the reason (rewards/scorer.py)."""

    def score(self, rollouts: list[Rollout], progress: Callable[[int], None] | None = None) -> list[Rollout]:
        """The same rollouts, scored."""
        ...

    def counts(self) -> dict[str, float]:
        """What was counted while scoring, since this was last asked."""
        ...

    def at(self, step: int, steps: int) -> None:
        """How many steps are done, and how many there are, for rewards that ask for it."""
        ...


class PromptSource(Protocol):
    """Hands out prompts, pass after pass (rollout/stages.py). position: how many it did. stages: what changes in a run.
    place: where it stands; set it to take the same prompts again.
    """

    position: int
    stages: Sequence[StageConfig]

    @property
    def place(self) -> Any:
        """Where it stands."""
        ...

    @place.setter
    def place(self, value: Any) -> None:
        """Goes back to where it stood."""
        ...

    def begin(self, done: int) -> None:
        """A batch is begun after `done` steps. Raises RefreshFailed."""
        ...

    def take(self, k: int, step: int) -> list[Prompt]:
        """The next k prompts, for the batch of a step."""
        ...

    def see(self, groups: Sequence[Group]) -> None:
        """Is shown all groups that were sampled and scored."""
        ...

    def find(self, id: str) -> Prompt:
        """A prompt that was taken, by its name."""
        ...

    def metrics(self, step: int) -> dict[str, Any]:
        """What it tells in a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next prompts depend on, in plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        ...


class RolloutSource(Protocol):
    """Groups for the trainer, batch after batch.

    metrics: what sampling took for the last batch, in seconds, and what was counted. unused: of the completions that were
    sampled for it and are not in it, why each has no reward, or None.
    """

    metrics: dict[str, float]
    unused: Sequence[str | None]

    @property
    def stale(self) -> bool:
        """Whether groups of the last batch may be of older weights than those of now."""
        ...

    def __iter__(self) -> Iterator[Group]: ...

    def fresh(self) -> list[Rollout]:
        """Rollouts of the present weights, where the last batch is stale."""
        ...

    def drop(self) -> None:
        """Gives up what waits or is under way."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands among the prompts, and what waits, in plain types."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        ...


Report = Callable[[str, int, int], None]
