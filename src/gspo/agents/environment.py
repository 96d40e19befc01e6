"""The protocol of an agent's environment, and a base class for environments with tools."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gspo.agents.loop_thread import FAILURES, raise_own
from gspo.agents.threads import begin
from gspo.data.messages import Message, content_of


@dataclass(frozen=True)
class Step:
    """What an environment returns for a turn.

    Attributes:
        messages: Messages for the policy to read next.
        reward: Reward of this turn. The reward of the episode is the sum over all turns.
        done: Whether the episode ends here.
        metrics: Numbers to sum over the episode, then to average and log. `reward` and `turns` are reserved for the
            episode's own.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode, used once. It is created as `Class(row)` from a row of the task: a dict with the prompt's column and all
    others.

    Many episodes run concurrently, so slow operations must be awaited. `tools` holds JSON schemas of the tools that the
    policy may call.
    """

    tools: Sequence[dict[str, Any]]

    async def start(self) -> Sequence[Message]:
        """The first messages for the policy to read."""
        ...

    async def step(self, turn: Message) -> Step:
        """The response to a turn of the policy: a message with `content`, and with `tool_calls` if it made any. `malformed`
        is present if a tool call could not be parsed, and says why.
        """
        ...


class ToolEnvironment:
    """An environment whose tools are functions, plain or async, with type hints and a docstring that describes the function
    and each argument (`Args:`).

    Invalid calls, exceptions in a tool, and calls longer than `tool_timeout` seconds are reported to the policy and counted.
    A plain function runs in its own thread, which is abandoned on timeout. A turn without a tool call goes to `end`.
    """

    functions: Sequence[Callable[..., Any]] = ()
    tool_timeout = 10.0

    def __init__(self, row: Mapping[str, Any]) -> None:
        from transformers.utils import get_json_schema

        self.row = row
        self._functions = {function.__name__: function for function in self.functions_of()}
        self.tools = [get_json_schema(function) for function in self._functions.values()]

    def functions_of(self) -> Sequence[Callable[..., Any]]:
        """The tools; may include methods of the environment."""
        return self.functions

    async def start(self) -> Sequence[Message]:
        """The row's prompt: a string becomes one user message, messages stay as they are."""
        prompt = self.row["prompt"]
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)

    async def end(self, text: str) -> float:
        """The reward of a turn without a tool call. Such a turn ends the episode."""
        raise NotImplementedError

    async def step(self, turn: Message) -> Step:
        """Runs the turn's tool calls, or ends the episode."""
        if "malformed" in turn:
            notice = {"role": "tool", "content": f"error: no call could be read: {turn['malformed']}"}
            return Step([notice], metrics={"tools/malformed": 1})
        calls = turn.get("tool_calls") or ()
        if not calls:
            return Step(reward=float(await self.end(content_of(turn))), done=True)
        counts: Counter[str] = Counter({"tools/calls": len(calls)})
        messages = []
        for call in calls:
            content, problem = await self._run(call["function"]["name"], call["function"]["arguments"])
            if problem:
                counts[f"tools/{problem}"] += 1
            messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": content})
        return Step(messages, metrics=dict(counts))

    async def _run(self, name: str, arguments: str) -> tuple[str, str]:
        """Runs a tool. Returns its output and the kind of failure: "unknown", "errors" or "timeouts"; "" for none."""
        function = self._functions.get(name)
        if function is None:
            return f"error: there is no tool {name!r}, only {', '.join(self._functions)}", "unknown"
        limit = asyncio.timeout(self.tool_timeout)
        try:
            values = json.loads(arguments)
            async with limit:
                if inspect.iscoroutinefunction(function):
                    return str(await function(**values)), ""
                return await asyncio.wrap_future(begin(partial(_answer, function, values)))
        except FAILURES as error:
            raise_own(error)
            if limit.expired():  # a tool's own TimeoutError is an error
                return f"error: {name} took more than {self.tool_timeout:g} seconds", "timeouts"
            return _failed(error)


def _answer(function: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, str]:
    """Calls a plain function in its thread. Nothing that it raises is meant for the episode's task."""
    try:
        return str(function(**values)), ""
    except BaseException as error:
        return _failed(error)


def _failed(error: BaseException) -> tuple[str, str]:
    """An exception as a message to the policy, and its kind."""
    return f"error: {type(error).__name__}: {error}"[:500], "errors"
