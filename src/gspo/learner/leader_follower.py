"""Rank 0 leads and the others follow: each call of the leader's learner is broadcast, and all ranks execute it on their
shards.

The leader runs the trainer, to which this is an ordinary learner (gspo.interfaces.Learner). Completions are sent to all
ranks, and load_balance.py assigns each to one rank; only that rank receives its routes. An error on any rank ends its
process, and with it all others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gspo.distributed.ranks import ProcessRanks, noticed
from gspo.interfaces import Weights
from gspo.learner.learner import LocalLearner, PolicyLearner, probed
from gspo.learner.weights import each_inside
from gspo.types import Agreement, Completion, Reading, Update

OVER = None  # the command that ends a follower
SAVES = ("save", "weights.save")
TENSORS, LAYERS, WEIGHTS = "weights.tensors", "weights.layers", "weights."


class RankLearner:
    """A rank's learner, and the handle on its weights that was published last."""

    def __init__(self, learner: LocalLearner) -> None:
        self.learner = learner
        self.weights: Weights | None = None

    def do(self, name: str, arguments: Sequence[Any]) -> Any:
        """Calls a method of the learner, or of the weights (`weights.save`)."""
        holder = self.weights if name.startswith(WEIGHTS) else self.learner
        answer = getattr(holder, name.removeprefix(WEIGHTS))(*arguments)
        if name == "publish":
            self.weights = answer
        return answer


def follow(learner: LocalLearner, ranks: ProcessRanks) -> None:
    """Executes the leader's calls until it ends."""
    own = RankLearner(learner)
    with noticed():
        while (command := ranks.broadcast_command()) is not OVER:
            try:
                answer = own.do(*command)
            except OSError:
                if command[0] not in SAVES:
                    raise
                continue  # the disk rejected it: all ranks get this error (sharded.py), and the leader decides what to do
            for _ in answer if command[0] in (TENSORS, LAYERS) else ():
                pass  # every rank contributes its shard


def unrouted(completions: Sequence[Completion]) -> list[Completion]:
    """Copies without routes, which the learner sends only to the rank that needs them (scoring.py)."""
    return [replace(completion, routes=None) for completion in completions]


class LeadingLearner:
    """gspo.interfaces.Learner across all ranks. Only rank 0's process calls it."""

    def __init__(self, learner: LocalLearner, ranks: ProcessRanks) -> None:
        self.learner, self.ranks = learner, ranks
        self._own = RankLearner(learner)
        self._one_at_a_time = threading.RLock()
        self.streams = False

    def all_do(self, name: str, *arguments: Any, to_followers: Sequence[Any] | None = None) -> Any:
        """Calls a method of every rank's learner (or `weights.` ...). to_followers: arguments unlike the leader's."""
        with self._one_at_a_time, noticed():
            assert not self.streams, "all ranks are in the middle of giving weights: listen to its end first"
            self.ranks.broadcast_command((name, arguments if to_followers is None else to_followers))
            return self._own.do(name, arguments)

    def override_lr(self, lr: float | None) -> None:
        """As LocalLearner.override_lr."""
        self.all_do("override_lr", lr)

    @property
    def clip(self) -> tuple[float, float] | None:
        """The current clip range; None for an algorithm without one."""
        return self.learner.clip if isinstance(self.learner, PolicyLearner) else None

    def fit(self, longest: int, vocabulary: int) -> None:
        """As LocalLearner.fit."""
        self.all_do("fit", longest, vocabulary)

    def take(self, mini_batches: Sequence[Sequence[Completion]]) -> None:
        """Sets the batch that the next updates train on."""
        self.all_do("take", mini_batches, to_followers=[list(map(unrouted, mini_batches))])

    def prepare(
        self, mini_batches: Sequence[Sequence[Completion]], recompute: bool, fresh: Sequence[Completion] = ()
    ) -> None:
        """As PolicyLearner.prepare."""
        some = probed(fresh)
        to_followers = list(map(unrouted, mini_batches)), recompute, unrouted(some)
        self.all_do("prepare", mini_batches, recompute, some, to_followers=to_followers)

    def enter(self, temperature: float, max_completion_length: int) -> None:
        """As PolicyLearner.enter."""
        self.all_do("enter", temperature, max_completion_length)

    def update(self, number: int) -> Update:
        """One optimizer step on the mini-batch with this index."""
        return self.all_do("update", number)

    def finish(self) -> bool:
        """Ends a step."""
        return self.all_do("finish")

    def compare(self, completions: Sequence[Completion], batch: Sequence[Completion] = ()) -> Agreement:
        """Mismatch between sampler and trainer on some of these completions."""
        some = probed(completions)
        return self.all_do("compare", some, batch, to_followers=[unrouted(some)])

    def read(self, completions: Sequence[Completion]) -> list[Tensor]:
        """The log-probabilities of the sampled tokens of a few completions, each [|y|]."""
        return self.all_do("read", completions, to_followers=[unrouted(completions)])

    def publish(self, version: int) -> Weights:
        """A handle on the current weights, under this version."""
        self.all_do("publish", version)
        return LeadingWeights(self, version)

    def save(self, folder: Path) -> None:
        """Every rank writes its part of a checkpoint."""
        self.all_do("save", folder)

    def resume(self, folder: Path) -> None:
        """Restores what `save` wrote, on any number of ranks."""
        self.all_do("resume", folder)

    def rewind(self, folder: Path, lr_factor: float) -> None:
        """Restores what `save` wrote, including the model."""
        self.all_do("rewind", folder, lr_factor)


class LeadingWeights:
    """gspo.interfaces.Weights for sharded weights; the leader receives one full tensor or layer at a time."""

    def __init__(self, learner: LeadingLearner, version: int) -> None:
        self.learner, self.version = learner, version

    @property
    def temperature(self) -> float:
        """The sampling temperature at which `read` takes log-probabilities."""
        return self.learner.learner.policy.temperature

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """Name and full tensor of each weight."""
        return self._streamed(TENSORS)

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The full tensors of each layer, as an engine loads them."""
        return self._streamed(LAYERS)

    def _streamed(self, name: str) -> Iterator[Any]:
        """Gathers the items from all ranks, to the end also if the consumer stops early: the other ranks take part."""
        every = iter(self.learner.all_do(name))
        self.learner.streams = True
        try:
            for item in each_inside(every, noticed):  # noqa: UP028 - `yield from` would close it together with the consumer
                yield item
        finally:
            for _ in every:
                pass
            self.learner.streams = False

    def save(self, folder: str, merged: bool = False) -> None:
        """Every rank writes some layers of the model, in Hugging Face format."""
        self.learner.all_do("weights.save", folder, merged)

    def read(self, completions: Sequence[Completion]) -> list[Reading]:
        """Readings of a few completions under these weights."""
        return self.learner.all_do("weights.read", completions, to_followers=[unrouted(completions)])
