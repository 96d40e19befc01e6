"""The model behind an endpoint: agents query it, and it trains on what they return."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from gspo.agents import art_compat
from gspo.agents.chat import Chat
from gspo.agents.gather import gather
from gspo.agents.matching import matched
from gspo.agents.threads import begin
from gspo.agents.trajectories import TrainCall, TrajectoryGroup, groups_of, trajectories_of
from gspo.config.names import RESUME
from gspo.config.needs import check_package
from gspo.distributed.ranks import RankLost
from gspo.learner.memory import OutOfMemory
from gspo.rollout.external import ExternalSource
from gspo.runs.log import finite
from gspo.serving.connections import EndpointServer, address_of, running
from gspo.serving.earlier_steps import EarlierSteps
from gspo.serving.endpoint import RunEnded, application
from gspo.serving.schema import TrainRequest
from gspo.serving.supervised import fit, targets
from gspo.training import trainer
from gspo.training.state import Run, save
from gspo.types import Completion, Metrics

COLLAPSED = f"the run collapsed, and guard.action ended it: {trainer.AFTER_COLLAPSE}"


class ServedModel:
    """A policy that agents query and that trains on their trajectories. Created by gspo.serve.

    Attributes:
        base_url, api_key: URL and API key of the endpoint.
        name: Name of the model in requests.
        folder: Folder of the run.
        earlier: The policy after a certain step, as NAME@STEP in requests.
        lost: Why the ranks of the run cannot work together any more, or None.
        ended: Whether nothing is running any more and nothing more will start.
    """

    def __init__(self, run: Run, source: ExternalSource, chat: Chat, base_url: str, api_key: str) -> None:
        self.run, self.source, self.chat, self.still = run, source, chat, chat.completer.still
        self.base_url, self.api_key, self.name = base_url, api_key, run.config.serve.name
        self.folder, self.earlier = run.log.folder.path, EarlierSteps(run, chat)
        self._trained: set[str] = set()  # ids of calls
        self._restored = 0  # version of the weights after the last rewind: older turns were sampled by those that it dropped
        self._lock = threading.Lock()
        self.lost: RankLost | OutOfMemory | None = None
        self._ending, self.ended = False, False

    @property
    def step(self) -> int:
        """Number of steps trained."""
        return self.run.step

    @property
    def collapsed(self) -> bool:
        """Whether the guard has ended the run, which trains no more."""
        return self.run.collapsed

    def openai_client(self, **options: Any) -> Any:
        """An openai.AsyncOpenAI for this endpoint. Raises ValueError if openai is not installed."""
        check_package("openai_client()", "openai")
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, **options)

    async def gather(self, groups: Iterable[Iterable[Awaitable[Any]]], **options: Any) -> list[TrajectoryGroup]:
        """gspo.gather, with its progress on the run's screen and its failures in the run's log."""
        return await gather(groups, progress=self.run.screen.phase, warn=self.run.log.warn, **options)

    async def train(self, groups: Iterable[Any], config: Any = None, **settings: Any) -> Metrics:
        """Trains one step on groups of trajectories. Returns its metrics.

        Each turn is trained on once. What cannot be trained on is counted in the metrics and named in the log. Cancelling
        the call does not stop the step.

        Args:
            groups: Groups of trajectories, gspo's or ART's.
            config: A TrainCall, or ART's TrainConfig.
            settings: The fields of `config`, as keyword arguments.

        Raises:
            TypeError: An argument is unknown.
            ValueError: A setting cannot change for one call, or nothing in the groups can be trained on; with the reasons.
            RuntimeError: The run collapses (guard.action), has collapsed, or has ended.
        """
        taken, call = groups_of(groups), art_compat.settings(config, settings)
        # Not in asyncio's thread pool: Python joins its threads on exit, and a second Ctrl-C must not wait for a step.
        return await asyncio.wrap_future(begin(lambda: self._train(taken, call)))

    async def imitate(self, trajectories: Iterable[Any], lr: float | Sequence[float], batch_size: int) -> list[Metrics]:
        """Supervised fine-tuning on the assistant turns of trajectories, as one step. Returns the metrics of each update.

        Args:
            trajectories: Conversations, gspo's or ART's.
            lr: Learning rate, or one for each update.
            batch_size: Conversations per update.

        Raises:
            ValueError: There is no such turn, one calls tools or is too long, or the run has several ranks.
            RuntimeError: The run has ended.
        """
        found = targets(trajectories, self.chat)
        return await asyncio.wrap_future(begin(lambda: self._imitate(found, lr, batch_size)))

    async def log(
        self,
        groups: Iterable[Any] | None = None,
        split: str = "val",
        *,
        metrics: Mapping[str, float] | None = None,
        step: int | None = None,
    ) -> Metrics:
        """Logs mean rewards and metrics of trajectories that are not trained on. Returns what it logs.

        Args:
            groups: Groups or trajectories.
            split: Prefix of the names.
            metrics: Further numbers to log as they are.
            step: Step that they belong to; None: the latest.

        Raises:
            ValueError: There is nothing to log.
        """
        trajectories = trajectories_of(groups or ())
        if not trajectories and not metrics:
            raise ValueError("log: there is no trajectory, and no metrics are given")
        numbers: dict[str, list[float]] = {}
        for trajectory in trajectories:
            own = {"reward": trajectory.reward}  # comes first, and wins over a metric of that name
            for name, value in (own | trajectory.metrics | own).items():
                numbers.setdefault(name, []).append(float(value))
        averages = {name: sum(values) / len(values) for name, values in numbers.items()} | dict(metrics or {})
        logged = {f"{split}/{name}": value for name, value in averages.items()}
        self.run.log.metrics({"step": self.step if step is None else step} | logged)
        return logged

    def save(self) -> None:
        """Saves a checkpoint, from which `resume=True` continues."""
        with self._exclusive():
            save(self.run)

    def end(self) -> None:
        """Waits for a running step or checkpoint, so that nothing is saved half done, and rejects further ones. Raises
        RankLost or OutOfMemory if the ranks have failed, even if the call that trained was cancelled.
        """
        self._ending = True
        if self._lock.locked():
            self.run.screen.note("finishing what is under way, then saving; Ctrl-C stops at once")
        with self._lock:
            self.ended = True
        if self.lost is not None:
            raise self.lost

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Serializes operations that involve all ranks. Sets `lost` if they fail."""
        with self._lock:
            if self.lost is not None:
                raise self.lost
            if self._ending:
                raise RunEnded(f"the run has ended, and trains and saves no more: go on with {RESUME}")
            try:
                yield
            except (RankLost, OutOfMemory) as error:
                self.lost = error
                raise

    def _imitate(self, found: list[list[Completion]], lr: float | Sequence[float], batch_size: int) -> list[Metrics]:
        with self._exclusive(), self.still:
            try:
                return fit(self.run, found, lr, batch_size)
            finally:
                self.earlier.newest = self.run.step, self.run.sampler.version

    def _train(self, groups: list[Any], config: TrainCall) -> Metrics:
        with self._exclusive():
            run = self.run
            if run.collapsed:
                raise RunEnded(COLLAPSED)
            if (level := config.importance_sampling_level) not in (None, run.row.level):
                raise ValueError(
                    f"importance_sampling_level = {level!r}: this run's algorithm, {run.config.algorithm.name}, is of level "
                    f'{run.row.level!r}; make the run with algorithm.name = "gspo" (sequence), "gspo_turn" or "grpo" (token)'
                )
            oldest = max(run.sampler.version - run.config.serve.max_age, self._restored)
            result = matched(groups, self.chat.calls, self._trained, oldest)
            if not result.groups:
                raise ValueError(f"there is nothing to train on: {result.reasons() or 'no trajectory was given'}")
            if result.reasons():
                run.log.warn(f"step {run.step + 1} leaves out {result.reasons()}")
            self.source.metrics = {
                "turns/trained": float(len(result.calls)),
                "turns/left_out": float(sum(result.left_out.values())),
                "trajectories/left_out": float(sum(result.unusable.values())),
            }
            before, rewinds = run.step, run.guard.rewinds
            read = self.source.give(result.groups)  # a teacher reads them while agents go on
            try:
                with self.still:
                    run.learner.override_lr(config.learning_rate)
                    metrics, _ = trainer.advance(run, read)
            finally:
                if run.step > before:  # also after a failure: there may have been updates
                    self.earlier.newest = run.step, run.sampler.version
                    if run.guard.rewinds > rewinds:
                        self._restored = run.sampler.version
                    self.chat.calls.evict(max(run.sampler.version - run.config.serve.max_age, self._restored))
                    self._trained = {id for id in self._trained | result.calls if id in self.chat.calls}
            if run.collapsed:
                raise RunEnded(f"step {run.step}: {COLLAPSED}")
            if run.step % run.config.train.save_every == 0:
                with self.still:
                    save(run, needed=False)
            return metrics


@contextmanager
def endpoint(model: ServedModel, listening: socket.socket) -> Iterator[None]:
    """Serves a model at a listening socket until the context exits."""
    run, config = model.run, model.run.config.serve

    async def train(request: TrainRequest) -> dict[str, Any]:
        settings = TrainCall(request.learning_rate, request.importance_sampling_level)
        metrics = await model.train(request.groups, settings)
        return {"step": metrics["step"], "metrics": finite(metrics)}

    if address_of(listening)[1]:
        run.log.warn(
            f"serve.host = {config.host!r}: other machines can reach the endpoint. Whoever has its key can use and train "
            "the model. The key and all texts go over the network without encryption"
        )
    app = application(model.chat, model.earlier, model.name, model.api_key, config, train)
    with running(EndpointServer(app, listening, config)):
        try:
            yield
        finally:
            try:
                model.end()  # before the endpoint closes: clients that wait for the step get a response
            finally:
                model.earlier.drop()
