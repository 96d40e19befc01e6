import asyncio
import time

import pytest

from gspo.agents.environment import Step, ToolEnvironment


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: One number.
        b: Another.
    """
    return a + b


async def later(word: str) -> str:
    """Says a word.

    Args:
        word: The word.
    """
    await asyncio.sleep(0)
    return word


def slow(seconds: float) -> str:
    """Takes its time.

    Args:
        seconds: How much.
    """
    time.sleep(seconds)
    return "done"


class Sums(ToolEnvironment):
    functions = (add, later, slow)
    tool_timeout = 0.1

    async def end(self, answer):
        return float(answer == self.row["value"])


def answer(*calls, **more):
    made = [{"id": str(i), "function": {"name": name, "arguments": given}} for i, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": ""} | ({"tool_calls": made} if made else {}) | more


def step(given, **row):
    return asyncio.run(Sums({"prompt": "1 + 2?", "value": "3"} | row).step(given))


def test_tools_are_described_by_their_hints_and_docstrings():
    first, *_ = Sums({}).tools
    assert first["function"]["name"] == "add" and first["function"]["parameters"]["required"] == ["a", "b"]
    assert first["function"]["parameters"]["properties"]["b"] == {"type": "integer", "description": "Another."}


def test_it_begins_with_the_prompt():
    assert asyncio.run(Sums({"prompt": "?"}).start()) == [{"role": "user", "content": "?"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "?"}]
    assert asyncio.run(Sums({"prompt": messages}).start()) == messages


def test_calls_are_answered_in_order_and_counted():
    found = step(answer(("add", '{"a": 1, "b": 2}'), ("later", '{"word": "so"}')))
    assert [(one["tool_call_id"], one["content"]) for one in found.messages] == [("0", "3"), ("1", "so")]
    assert found.metrics == {"tools/calls": 2} and not found.done and found.reward == 0


@pytest.mark.parametrize(
    ("name", "arguments", "told", "counted"),
    [
        ("sub", "{}", "error: there is no tool 'sub', only add, later, slow", "unknown"),
        ("add", '{"a": 1}', "error: TypeError: missing a required argument: 'b'", "errors"),
        ("add", '{"a": 1, "b": "x"}', "error: TypeError: unsupported operand", "errors"),
        ("add", "oops", "error: JSONDecodeError", "errors"),
        ("slow", '{"seconds": 0.3}', "error: slow took more than 0.1 seconds", "timeouts"),
    ],
)
def test_what_goes_wrong_is_told_to_the_policy(name, arguments, told, counted):
    found = step(answer((name, arguments)))
    assert found.messages[0]["content"].startswith(told) and found.metrics == {"tools/calls": 1, f"tools/{counted}": 1}


def test_a_call_that_nobody_could_read():
    found = step(answer(malformed="no end"))
    assert found.messages == [{"role": "tool", "content": "error: no call could be read: no end"}]
    assert found.metrics == {"tools/malformed": 1} and not found.done


def test_an_answer_without_a_call_ends_it():
    assert step(answer(content="3")) == Step(reward=1.0, done=True)
    assert step(answer(content=[{"type": "text", "text": "4"}])) == Step(reward=0.0, done=True)
