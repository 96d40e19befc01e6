"""Environments of the library `verifiers` (0.4), as a sampler: tasks in, scored conversations out.

The environment uses its own harness, tools, runtime and rewards, with the policy as its model. Every sampled token is kept.
"""

from __future__ import annotations

import asyncio
import copy
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Self

import verifiers.v1 as vf
from verifiers.v1.interception import InterceptionServerConfig

from gspo.agents import verifiers_harness
from gspo.agents.episodes import Parts, WholeEpisodes
from gspo.agents.loop_thread import FAILURES, raise_own
from gspo.agents.token_tree import merge_turns
from gspo.agents.verifiers_client import Playing, PolicyClient
from gspo.config.import_function import describe
from gspo.config.rollout import TaskConfig
from gspo.data import reward_bounds
from gspo.data.chat_template import Encoder
from gspo.data.verifiers_tasks import check_installed, tasks_of, taskset_options
from gspo.interfaces import Sampler, StreamingCompleter
from gspo.safe import without_logins, without_secrets
from gspo.types import Prompt, Rollout, Sampling

AT_ONCE = 256  # concurrent episodes: harnesses may be processes or containers
HARNESS = "gspo_chat"
sys.modules.setdefault(HARNESS, verifiers_harness)  # verifiers imports a harness by an undotted name
# A train config, because verifiers passes its requests to the client one by one. Nothing listens at the address; only
# harnesses that look up the model's context length ever contact it.
NOWHERE = vf.TrainClientConfig(base_url="http://127.0.0.1:9/v1", api_key_var="GSPO_NO_KEY")


def settings(source: str, task: TaskConfig, split: str | None = None) -> vf.EnvConfig:
    """The configuration of an environment: `task.config`, in the format of verifiers' own `[env]`. An agent without a
    configured harness and runtime chats in this process, unless the tasks need a container. Raises ValueError.
    """
    check_installed(source)
    options = copy.deepcopy(task.config) | {"taskset": taskset_options(source, task, split)}
    name = options["taskset"]["id"]
    try:
        config = vf.resolve_env_config(options)
        free = vf.default_harness_id(name) == "bash" and not vf.task_type(name).NEEDS_CONTAINER
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{source}: task.config = {without_secrets(task.config)!r} does not fit: {describe(error)}"
        ) from error
    chat = {"harness": vf.harness_config_type(HARNESS)(id=HARNESS), "runtime": vf.SubprocessConfig()}
    for role, agent in config:
        if isinstance(agent, vf.AgentConfig):
            update = {"max_turns": task.max_turns} if agent.max_turns is None else {}
            if free and not set(chat) & agent.model_fields_set:
                update |= chat
            setattr(config, role, agent.model_copy(update=update))
    if not isinstance(config.interception, InterceptionServerConfig):
        config.interception = InterceptionServerConfig()  # one server for all episodes, which gets the client
    return config


def sources(task: TaskConfig) -> list[tuple[str, str | None]]:
    """The sources of prompts, each with the split of its taskset if it is not the configured one."""
    named: list[tuple[str, str | None]] = [(task.source, None)]
    if task.eval_source or task.eval_split:
        named.append((task.eval_source or task.source, task.eval_split))
    return named


def check(task: TaskConfig) -> None:
    """Raises ValueError for environments that cannot be created. Called before a model is loaded."""
    for source, split in sources(task):
        settings(source, task, split)


class VerifiersEpisodes(WholeEpisodes):
    """Episodes scored by environments of verifiers. A failed episode has no reward, and the reason as its `error`.
    `task.step_timeout` limits the seconds that an environment takes between two requests to the policy, and for its rewards.
    As a context manager it starts and stops what environments share (tool servers).
    """

    def __init__(
        self, sampler: Sampler, completer: StreamingCompleter, encoder: Encoder, context: int | None, task: TaskConfig
    ) -> None:
        self._client = PolicyClient()
        self._environments = [
            (vf.load_environment(settings(source, task, split)), tasks_of(source, task, split))
            for source, split in sources(task)
        ]
        self._stack, self._gate = AsyncExitStack(), asyncio.Semaphore(AT_ONCE)
        super().__init__(sampler, completer, encoder, context, task)

    def __enter__(self) -> Self:
        try:
            self._loop.run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.give_up()  # stop the episodes before what they share
        try:
            self._loop.run(self._stack.aclose())
        finally:
            super().__exit__(*error)

    async def _open(self) -> None:
        for env, _ in self._environments:
            await self._stack.enter_async_context(env.serving())
            # verifiers creates clients from configurations; this is the only way to give its server a client object.
            env._interception.clients[NOWHERE.model_dump_json()] = self._client

    async def _play(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        async with self._gate:
            return await self._run_episode(prompt, seed, sampling)

    async def _run_episode(self, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        key = prompt.columns["task"]
        env, task = next((env, tasks.by_content[key]) for env, tasks in self._environments if key in tasks.by_content)
        task = copy.copy(task)
        task.data = copy.deepcopy(task.data)  # episodes must not see each other's changes
        sampling_config = vf.SamplingConfig(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, max_tokens=sampling.max_new_tokens
        )
        playing, traces = Playing(self._chat(sampling), seed, self.task.step_timeout), list[str]()

        def begun(trace: vf.Trace) -> None:
            traces.append(trace.id)
            self._client.talks[trace.id] = playing

        try:
            async with playing.clock:
                context = vf.ModelContext(model="policy", client=NOWHERE, sampling=sampling_config)
                episode = await env.run_slot(env.slots(task)[0], context, on_trace=begun)
        except TimeoutError:
            return _failed(prompt, f"the environment took more than task.step_timeout = {playing.limit:g} seconds")
        except FAILURES as error:  # a failed episode is data
            raise_own(error)
            return _failed(prompt, describe(error))
        finally:
            for name in traces:
                self._client.talks.pop(name, None)
            if playing.lost is not None:
                raise playing.lost
        return _rollout(prompt, env, episode, playing, self.parts)


def _failed(prompt: Prompt, why: str, dialogue: tuple[dict[str, Any], ...] = ()) -> Rollout:
    error = without_logins(f"environment: {why}")[:300]
    return replace(Rollout.begun(prompt), stop="error", error=error, dialogue=dialogue)


def _rollout(prompt: Prompt, env: Any, episode: Any, playing: Playing, parts_of: Callable[..., Parts]) -> Rollout:
    """A finished episode as a scored rollout, with the tokens of its one trainable agent. parts_of: WholeEpisodes.parts."""
    trained = [trace for trace in episode.traces if trace.agent.trainable]
    if len(trained) != 1:
        why = "".join(f": {error.type}: {error.message}" for error in episode.errors[-1:])
        return _failed(prompt, f"{len(trained)} of its agents' runs are to be trained, one is expected{why}")
    trace, calls = trained[0], playing.calls[trained[0].id]
    if problem := _problem(env, episode, trace, playing):
        return _failed(prompt, problem, dialogue(trace))
    cut = trace.is_truncated or trace.is_timeout or playing.full
    own: Parts = {"reward": trace.reward, "turns": float(len(calls))}
    own |= {"turns/context_full": 1.0} if playing.full else {}
    own |= {"tools/malformed": float(playing.chat.malformed)} if playing.chat.malformed else {}
    scored = parts_of(own, {name: reward.score for name, reward in trace.rewards.items()})
    rollout = merge_turns(replace(prompt, tokens=calls[0].rollout.prompt.tokens), list(enumerate(calls)))
    return replace(
        rollout, reward=trace.reward, reward_parts=parts_of(scored, trace.metrics), text=calls[-1].words,
        dialogue=dialogue(trace), stop="length" if cut else rollout.stop,
    )  # fmt: skip


def _problem(env: Any, episode: Any, trace: Any, playing: Playing) -> str:
    """Why an episode cannot be trained on; empty if it can."""
    if not (env.complete(episode) and trace.ok):
        errors = [*episode.errors, *(error for run in episode.traces for error in run.errors), *trace.errors]
        return f"{errors[-1].type}: {errors[-1].message}" if errors else "verifiers calls the episode incomplete"
    if not playing.calls[trace.id]:
        return "it ended before the policy's first turn" + ": the context is full" * playing.full
    if untrainable := [call.untrainable for call in playing.calls[trace.id] if call.untrainable]:
        return f"a turn was {untrainable[0]}: take it out of the agent's `sampling`"
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing or not trace.rewards:
        return f"no reward of {', '.join(missing) or 'any kind'} was given"
    if problem := reward_bounds.invalid(trace.reward):
        return f"its reward is {problem}"
    return ""


def dialogue(trace: Any) -> tuple[dict[str, Any], ...]:
    """The messages of a trace, for the log."""
    entries, turn = [], 0
    for node in trace.nodes:
        message = node.message.model_dump(mode="json", exclude_none=True)
        entry = {"role": message["role"], "content": message.get("content", "")}
        if message.get("tool_calls"):
            entry["tool_calls"] = [{name: call[name] for name in ("name", "arguments")} for call in message["tool_calls"]]
        if node.sampled:
            entry["turn"], turn = turn, turn + 1
        entries.append(entry)
    return tuple(entries)
