"""What an episode is played in: a small protocol, and a base class for environments with tools."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gspo.agents.calls import Message, content_of
from gspo.agents.threads import begin


@dataclass(frozen=True)
class Step:
    """What follows a turn. messages: for the policy to read next. reward: of this turn. done: the episode ends here;
    its reward is the sum over all turns. metrics: numbers to add up over the episode, and to average and log; `reward` and
    `turns` are the episode's own.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """One episode, used once. It is made from a row of the task: `Class(row)`, a dict with the prompt's column and all
    others. Many are played at once, so what takes long must be awaited. tools: JSON schemas of what the policy may call.
    """

    tools: Sequence[dict[str, Any]]

    async def start(self) -> Sequence[Message]:
        """The messages that the policy reads first."""
        ...

    async def step(self, turn: Message) -> Step:
        """What follows a turn of the policy: a message with `content`, and `tool_calls` where it made any; `malformed`
        says what is wrong with one that set out to call a tool and did not say how.
        """
        ...


class ToolEnvironment:
    """An environment whose tools are functions, plain or async, with type hints and a docstring that describes them and
    each argument (`Args:`). Mistakes in calling them, their own errors, and calls of over `tool_timeout` seconds are told to
    the policy and counted. A plain one runs in a thread of its own, which is left behind when its time is over. A turn
    without a call goes to `end`.
    """

    functions: Sequence[Callable[..., Any]] = ()
    tool_timeout = 10.0

    def __init__(self, row: Mapping[str, Any]) -> None:
        from transformers.utils import get_json_schema

        self.row = row
        self._functions = {function.__name__: function for function in self.functions_of()}
        self.tools = [get_json_schema(function) for function in self._functions.values()]

    def functions_of(self) -> Sequence[Callable[..., Any]]:
        """The tools; methods of the environment may be among them."""
        return self.functions

    async def start(self) -> Sequence[Message]:
        """The row's prompt: a string, or messages."""
        prompt = self.row["prompt"]
        return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)

    async def end(self, text: str) -> float:
        """The reward of a turn that calls no tool, which ends the episode."""
        raise NotImplementedError

    async def step(self, turn: Message) -> Step:
        """Runs the tools that the turn calls, or ends."""
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
        """What a tool says, and what went wrong: "unknown", "errors" or "timeouts"; "" where nothing did."""
        function = self._functions.get(name)
        if function is None:
            return f"error: there is no tool {name!r}, only {', '.join(self._functions)}", "unknown"
        late = f"error: {name} took more than {self.tool_timeout:g} seconds", "timeouts"
        limit = asyncio.timeout(self.tool_timeout)
        try:
            values = json.loads(arguments)
            inspect.signature(function).bind(**values)
            if not inspect.iscoroutinefunction(function):
                return await _within(self.tool_timeout, begin(partial(_answer, function, values))) or late
            async with limit:
                return str(await function(**values)), ""
        except (Exception, SystemExit) as error:
            return late if limit.expired() else _told(error)  # a tool may raise a TimeoutError of its own


async def _within(seconds: float, answer: Future[tuple[str, str]]) -> tuple[str, str] | None:
    """What a thread answers within some seconds, or None. An answer that is there counts, however late the loop sees it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(answer)
    return answer.result() if answer.done() else None


def _answer(function: Callable[..., Any], values: Mapping[str, Any]) -> tuple[str, str]:
    """What a plain function says, and what went wrong. Whatever it raises in its thread is its own error: neither a
    KeyboardInterrupt nor a CancelledError is meant for the episode, and no asyncio future takes a StopIteration.
    """
    try:
        return str(function(**values)), ""
    except BaseException as error:
        return _told(error)


def _told(error: BaseException) -> tuple[str, str]:
    """An error for the policy to read."""
    return f"error: {type(error).__name__}: {error}"[:500], "errors"
