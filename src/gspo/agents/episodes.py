"""Episodes in environments, as a sampler: prompts in, rewarded conversations out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from gspo.agents.calls import Call, Calls, Message
from gspo.agents.chat import Chat, TooLong, TurnOptions
from gspo.agents.environment import Environment, Step
from gspo.agents.token_tree import woven
from gspo.agents.tool_calls import UnknownConvention
from gspo.data.bounds import unfit
from gspo.data.chat_template import Encoder
from gspo.ports import Sampler, SamplerError, Speaker, Weights, seed_of
from gspo.types import Prompt, Rollout, Sampling

Make = Callable[[Mapping[str, Any]], Environment]


class WholeEpisodes:
    """A sampler whose completions are whole episodes, as `_play` plays one; `sampler` samples its turns, through `speaker`
    one at a time.
    """

    def __init__(self, sampler: Sampler, speaker: Speaker) -> None:
        self.sampler, self.speaker = sampler, speaker

    @property
    def version(self) -> int:
        """That of the weights of now."""
        return self.sampler.version

    @property
    def probes(self) -> list[Rollout]:
        """Completions of the present weights, where the sampler proves them."""
        return self.sampler.probes

    def counts(self) -> dict[str, float]:
        """What the sampler counted."""
        return self.sampler.counts()

    def load(self, weights: Weights) -> None:
        """Takes over these weights."""
        self.sampler.load(weights)

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:  # fmt: skip
        """`n` episodes of each prompt, in the order of the prompts, scored. Raises RuntimeError where one ends them all."""

        def play(i: int, j: int) -> Awaitable[Rollout]:
            return self._play(prompts[i], seed_of(sampling.seed, i, j), sampling)

        try:
            return self._run(at_once(play, len(prompts), n, progress or (lambda done: None)))
        except SystemExit as error:  # of a task that an environment began: it takes all others with it
            raise RuntimeError(
                f"an environment called sys.exit({error.code!r}) in a task of its own: take that out"
            ) from error

    def _run(self, work: Coroutine[Any, Any, list[Rollout]]) -> list[Rollout]:
        return asyncio.run(work)

    async def _play(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        """One episode, to its end, its limits, or its failure, which is data. Raises SamplerError."""
        raise NotImplementedError


class Episodes(WholeEpisodes):
    """Episodes that are rewarded by environments of ours.

    make: an environment of a row. context: most tokens that the model reads. max_turns: turns after which an episode is
    cut off. step_timeout: seconds that an environment may take for one step. An episode whose environment fails has no
    reward, and the reason as its `error`.
    """

    def __init__(
        self, sampler: Sampler, speaker: Speaker, encoder: Encoder, context: int | None, make: Make, column: str,
        max_turns: int, step_timeout: float,
    ) -> None:  # fmt: skip
        super().__init__(sampler, speaker)
        self.encoder, self.context, self.make, self.column = encoder, context, make, column
        self.max_turns, self.step_timeout = max_turns, step_timeout

    async def _play(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        # Each has calls of its own: another's turn in the same words is not this one's.
        chat = Chat(self.speaker, self.encoder, replace(sampling, seed=0), self.context, Calls())
        return await Episode(self, chat, prompt, seed).play()


async def at_once(
    play: Callable[[int, int], Awaitable[Rollout]], count: int, n: int, progress: Callable[[int], None]
) -> list[Rollout]:  # fmt: skip
    """`n` episodes of each of `count` prompts, prompt after prompt. play: by the number of the prompt and of its episode."""
    done = 0

    async def one(i: int, j: int) -> Rollout:
        nonlocal done
        made = await play(i, j)
        done += 1
        progress(done)
        return made

    tasks = [asyncio.ensure_future(one(i, j)) for i in range(count) for j in range(n)]
    try:
        return counted(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # what they hold goes before the next step


def counted(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with 0 for what others of them counted, so that means are over all."""
    names = dict.fromkeys(name for rollout in rollouts for name in rollout.reward_parts)
    return [
        rollout
        if rollout.reward is None
        else replace(rollout, reward_parts={name: rollout.reward_parts.get(name, 0.0) for name in names})
        for rollout in rollouts
    ]


class Episode:
    """One episode while it is played."""

    def __init__(self, rules: Episodes, chat: Chat, prompt: Prompt, seed: int) -> None:
        self.rules, self.chat, self.prompt, self.seed = rules, chat, prompt, seed
        self.calls: list[Call] = []
        self.rewards: list[float] = []
        self.metrics: Counter[str] = Counter()
        self.messages: list[Message] = []
        self.dialogue: list[dict[str, Any]] = []

    async def play(self) -> Rollout:
        """To its end, its limits, or its failure."""
        try:
            cut = await self._turns()
        except (SamplerError, UnknownConvention):  # no other episode would do better
            raise
        except (Exception, SystemExit) as error:  # a failed episode is data
            reason = "timed out" if isinstance(error, TimeoutError) else str(error)
            return self._rollout(None, f"environment: {type(error).__name__}: {reason}"[:300])
        if problem := next(filter(None, map(unfit, [*self.rewards, sum(self.rewards)])), ""):
            return self._rollout(None, f"environment: its reward is {problem}")
        rollout = self._rollout(sum(self.rewards), None)
        return replace(rollout, stop="length") if cut else rollout

    async def _turns(self) -> bool:
        """Plays. Returns whether it was cut off."""
        row = {**self.prompt.columns, self.rules.column: self.prompt.messages}
        environment = self.rules.make(deepcopy(row))  # what one episode changes in it, no other sees
        self._hear(await self._in_time(environment.start()))
        for turn in range(self.rules.max_turns):
            try:
                (call,) = await self.chat.turn(self.messages, environment.tools, TurnOptions(seed=self.seed + turn))
            except TooLong:
                self.metrics["turns/context_full"] += 1
                if not self.calls:
                    raise
                return True
            self.calls.append(call)
            step: Step = await self._in_time(environment.step(call.message))
            self.rewards.append(float(step.reward))
            self.metrics.update(step.metrics)
            told = {"role": "assistant", "content": call.words, "turn": turn, "reward": float(step.reward)}
            self.messages.append(call.message)
            self.dialogue.append(told)
            if step.done:
                return False
            self._hear(step.messages)
        self.metrics["turns/limit"] += 1
        return True

    def _hear(self, messages: Sequence[Message]) -> None:
        self.messages.extend(messages)
        self.dialogue.extend({"role": one.get("role"), "content": one.get("content")} for one in messages)

    async def _in_time(self, made: Any) -> Any:
        async with asyncio.timeout(self.rules.step_timeout):  # not wait_for: a SystemExit in its task ends the process
            return await made

    def _rollout(self, reward: float | None, error: str | None) -> Rollout:
        if not self.calls:
            begun = Rollout.begun(self.prompt)
            return replace(begun, stop="error", error=error, dialogue=tuple(self.dialogue))
        first = self.calls[0].rollout.prompt
        rollout = woven(replace(self.prompt, tokens=first.tokens), list(enumerate(self.calls)))
        parts: dict[str, float | None] = {"reward": reward, "turns": float(len(self.calls))}
        return replace(
            rollout,
            reward=reward,
            reward_parts=parts | dict(self.metrics),
            turn_rewards=None if reward is None else tuple(self.rewards),
            text=self.calls[-1].words,
            dialogue=tuple(self.dialogue),
            error=error,
        )
