"""Episodes in environments, as a sampler: prompts in, scored conversations out."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import replace
from typing import Any, Self

from gspo.agents.calls import Call
from gspo.agents.chat import Chat, TooLong, TurnOptions
from gspo.agents.environment import Environment, Step
from gspo.agents.loop_thread import FAILURES, LoopThread, cancelled, raise_own
from gspo.agents.token_tree import merge_turns
from gspo.agents.tool_calls import UnknownConvention
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.data.messages import Message
from gspo.data.reward_bounds import invalid
from gspo.interfaces import Job, Sampler, SamplerError, StreamingCompleter, Weights, seed_of
from gspo.safe import without_logins
from gspo.types import Prompt, Rollout, Sampling

logger = logging.getLogger(__name__)

Parts = dict[str, float | None]


class WholeEpisodes:
    """A StreamingSampler (interfaces.py) whose completions are whole episodes, each played by `_play`.

    Episodes run concurrently in an event-loop thread and continue across weight updates: each turn is sampled with the
    weights of its time. A context manager; on exit, running episodes are cancelled.

    `sampler` takes the weight updates, `completer` samples the turns one at a time with its weights. context: the model's
    context length in tokens; None: no limit.
    """

    def __init__(
        self, sampler: Sampler, completer: StreamingCompleter, encoder: Encoder, context: int | None, task: TaskConfig
    ) -> None:
        self.sampler, self.completer, self.encoder, self.context = sampler, completer, encoder, context
        self.task, self._loop, self.still = task, LoopThread(), completer.still
        self._left_out: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.close()

    @property
    def version(self) -> int:
        """Version of the current weights."""
        return self.sampler.version

    @property
    def probes(self) -> list[Rollout]:
        """Completions of the current weights, if the sampler verifies weight updates."""
        return self.sampler.probes

    def counts(self) -> dict[str, float]:
        """The sampler's counters."""
        return self.sampler.counts()

    def load(self, weights: Weights) -> None:
        """Loads these weights."""
        self.sampler.load(weights)

    def rest(self) -> None:
        """Pauses the sampler: no episode runs until the next `load`. A turn that an environment gave up ends before that."""
        with self.still:
            self.sampler.rest()

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:
        """Plays `n` episodes of each prompt. Returns scored rollouts in the order of the prompts."""
        return self._loop.run(self._play_all(prompts, n, sampling, progress or (lambda done: None)))

    async def _play_all(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None]
    ) -> list[Rollout]:
        done = 0

        async def play(i: int, j: int) -> Rollout:
            nonlocal done
            rollout = await self._play(prompts[i], seed_of(sampling.seed, i, j), sampling)
            done += 1
            progress(done)
            return rollout

        tasks = [asyncio.ensure_future(play(i, j)) for i in range(len(prompts)) for j in range(n)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            await cancelled(tasks)  # they release their resources before the next step

    def begin(self, so_far: Rollout, seed: int, sampling: Sampling) -> Job:
        """Starts an episode for the prompt of `so_far`, or returns a finished one. A running one has no partial result."""
        future: Future[Rollout] = Future()
        if so_far.stop:
            future.set_result(so_far)
        else:
            future = self._loop.begin(self._play(so_far.prompt, seed, sampling))

        def now() -> Rollout:
            well = future.done() and not future.cancelled() and future.exception() is None
            return future.result() if well else so_far

        return Job(future, now)

    def parts(self, own: Mapping[str, float | None], given: Mapping[str, float]) -> Parts:
        """The parts of an episode's reward: `own` first, then what the environment gave under other names. Warns once for
        each name whose value is dropped.
        """
        for name in own.keys() & given.keys() - self._left_out:
            if own[name] not in (None, given[name]):
                self._left_out.add(name)
                logger.warning(
                    f"the environment gives a metric {name!r}, which is left out: reward/{name} is another number. Give the "
                    "metric another name"
                )
        return {**own, **{name: value for name, value in given.items() if name not in own}}

    def _chat(self, sampling: Sampling) -> Chat:
        """A chat with its own cache: an identical turn of another episode must not be taken for this one's."""
        return Chat(self.completer, self.encoder, replace(sampling, seed=0), self.context)

    async def _play(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        """Plays one episode until it ends, reaches a limit or fails; a failure is data. Raises SamplerError."""
        raise NotImplementedError


class Episodes(WholeEpisodes):
    """Episodes of gspo's own environments, which `make` creates from rows. A failed one has an `error` and no reward."""

    def __init__(
        self,
        sampler: Sampler,
        completer: StreamingCompleter,
        encoder: Encoder,
        context: int | None,
        task: TaskConfig,
        make: Callable[[Mapping[str, Any]], Environment],
    ) -> None:
        super().__init__(sampler, completer, encoder, context, task)
        self.make = make

    async def _play(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        return await Episode(self, self._chat(sampling), prompt, seed).play()


class Episode:
    """The state of one running episode."""

    def __init__(self, episodes: Episodes, chat: Chat, prompt: Prompt, seed: int) -> None:
        self.episodes, self.task, self.chat, self.prompt, self.seed = episodes, episodes.task, chat, prompt, seed
        self.calls: list[Call] = []
        self.rewards: list[float] = []
        self.metrics: defaultdict[str, float] = defaultdict(float)
        self.limits: Parts = {}  # limits that were reached
        self.messages: list[Message] = []
        self.dialogue: list[dict[str, Any]] = []

    async def play(self) -> Rollout:
        """Plays until the episode ends, reaches a limit or fails."""
        try:
            cut = await self._turns()
        except (SamplerError, UnknownConvention):  # every episode would fail like this
            raise
        except FAILURES as error:  # a failed episode is data
            raise_own(error)
            reason = "timed out" if isinstance(error, TimeoutError) else str(error)
            return self._rollout(None, without_logins(f"environment: {type(error).__name__}: {reason}")[:300])
        if problem := next(filter(None, map(invalid, [*self.rewards, sum(self.rewards)])), ""):
            return self._rollout(None, f"environment: its reward is {problem}")
        rollout = self._rollout(sum(self.rewards), None)
        return replace(rollout, stop="length") if cut else rollout

    async def _turns(self) -> bool:
        """Plays the turns. Returns whether the episode was truncated."""
        row = {"prompt": self.prompt.messages, **self.prompt.columns, self.task.prompt_column: self.prompt.messages}
        environment = self.episodes.make(deepcopy(row))  # episodes must not see each other's changes
        self._add(await self._in_time(environment.start()))
        for turn in range(self.task.max_turns):
            try:
                (call,) = await self.chat.turn(self.messages, environment.tools, TurnOptions(seed=self.seed + turn))
            except TooLong:
                self.limits["turns/context_full"] = 1.0
                if not self.calls:
                    raise
                return True
            self.calls.append(call)
            step: Step = await self._in_time(environment.step(call.message))
            self.rewards.append(float(step.reward))
            for name, value in step.metrics.items():
                self.metrics[name] += float(value)
            self.messages.append(call.message)
            self.dialogue.append({"role": "assistant", "content": call.words, "turn": turn, "reward": float(step.reward)})
            if step.done:
                return False
            self._add(step.messages)
        self.limits["turns/limit"] = 1.0
        return True

    def _add(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self.dialogue.extend({"role": one.get("role"), "content": one.get("content")} for one in messages)

    async def _in_time(self, made: Any) -> Any:
        async with asyncio.timeout(self.task.step_timeout):
            return await made

    def _rollout(self, reward: float | None, error: str | None) -> Rollout:
        if not self.calls:
            return replace(Rollout.begun(self.prompt), stop="error", error=error, dialogue=tuple(self.dialogue))
        first = self.calls[0].rollout.prompt
        rollout = merge_turns(replace(self.prompt, tokens=first.tokens), list(enumerate(self.calls)))
        own: Parts = {"reward": reward, "turns": float(len(self.calls)), **self.limits}
        return replace(
            rollout, reward=reward, reward_parts=self.episodes.parts(own, self.metrics),
            turn_rewards=None if reward is None else tuple(self.rewards), text=self.calls[-1].words,
            dialogue=tuple(self.dialogue), error=error,
        )  # fmt: skip
