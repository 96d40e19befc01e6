import asyncio
import concurrent.futures
import multiprocessing
import threading
import time
from contextvars import ContextVar

from gspo.agents.environment import Step, ToolEnvironment
from tests.patience import PATIENCE

WHO = ContextVar("who", default="nobody")


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

    async def end(self, answer):
        return float(answer == self.row["value"])


def answer(*calls, **more):
    made = [{"id": str(i), "function": {"name": name, "arguments": given}} for i, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": ""} | ({"tool_calls": made} if made else {}) | more


def step(given, environment=None, timeout=PATIENCE):
    environment = environment or Sums({"prompt": "1 + 2?", "value": "3"})
    environment.tool_timeout = timeout
    return asyncio.run(environment.step(given))


def test_tools_are_described_by_their_hints_and_docstrings():
    first, *_ = Sums({}).tools
    assert first["function"]["name"] == "add" and first["function"]["parameters"]["required"] == ["a", "b"]
    assert first["function"]["parameters"]["properties"]["b"] == {"type": "integer", "description": "Another."}


def test_it_begins_with_the_prompt_and_ends_without_a_call():
    assert asyncio.run(Sums({"prompt": "?"}).start()) == [{"role": "user", "content": "?"}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "?"}]
    assert asyncio.run(Sums({"prompt": messages}).start()) == messages
    assert step(answer(content="3")) == Step(reward=1.0, done=True)
    assert step(answer(content=[{"type": "text", "text": "4"}])) == Step(reward=0.0, done=True)


def test_calls_are_answered_in_order_and_counted():
    found = step(answer(("add", '{"a": 1, "b": 2}'), ("later", '{"word": "so"}')))
    assert [(one["tool_call_id"], one["content"]) for one in found.messages] == [("0", "3"), ("1", "so")]
    assert found.metrics == {"tools/calls": 2} and not found.done and found.reward == 0


def test_what_goes_wrong_is_told_to_the_policy():
    for name, arguments, told, counted in (
        ("sub", "{}", "error: there is no tool 'sub', only add, later, slow", "unknown"),
        ("add", '{"a": 1}', "error: TypeError: add() missing 1 required positional argument: 'b'", "errors"),
        ("add", '{"a": 1, "b": "x"}', "error: TypeError: unsupported operand", "errors"),
        ("add", "oops", "error: JSONDecodeError", "errors"),
        ("slow", '{"seconds": 1000}', "error: slow took more than 0.1 seconds", "timeouts"),
    ):
        found = step(answer((name, arguments)), timeout=0.1 if counted == "timeouts" else PATIENCE)
        assert found.messages[0]["content"].startswith(told) and found.metrics == {"tools/calls": 1, f"tools/{counted}": 1}
    found = step(answer(malformed="no end"))
    assert found.messages == [{"role": "tool", "content": "error: no call could be read: no end"}]
    assert found.metrics == {"tools/malformed": 1} and not found.done


class Doors(ToolEnvironment):
    """Tools that wait until somebody opens."""

    tool_timeout = PATIENCE

    def functions_of(self):
        return [self.hold, self.open]

    def hold(self) -> str:
        """Waits."""
        return "open" if self.row["opened"].wait(PATIENCE) else "still shut"

    def open(self) -> str:
        """Opens."""
        self.row["opened"].set()
        return "opened"


def test_no_plain_tool_waits_for_another():
    row = {"opened": threading.Event()}

    async def steps():
        calls = [(name, "{}") for name in ("hold",) * 100 + ("open",)]
        return await asyncio.gather(*(Doors(row).step(answer(call)) for call in calls))

    found = [step.messages[0]["content"] for step in asyncio.run(steps())]
    assert found == ["open"] * 100 + ["opened"]


def hang(row):
    assert step(answer(("hold", "{}")), Doors(row), 0.1).metrics["tools/timeouts"] == 1


def test_a_tool_that_hangs_keeps_no_program_from_ending():
    program = multiprocessing.get_context("fork").Process(target=hang, args=({"opened": threading.Event()},))
    program.start()
    program.join(PATIENCE / 2)  # the tool waits for longer
    try:
        assert program.exitcode == 0
    finally:
        program.kill()


class Falls(ToolEnvironment):
    """Its tools raise what its row says, and tell whose they are."""

    def functions_of(self):
        return [self.fall, self.fall_later, self.who]

    def fall(self) -> str:
        """Falls."""
        raise self.row["error"]

    async def fall_later(self) -> str:
        """Falls."""
        raise self.row["error"]

    def who(self) -> str:
        """Says who asks."""
        return WHO.get()


def test_whatever_a_tool_raises_is_its_own_error():
    for tool, error in (
        ("fall", SystemExit(1)),
        ("fall", StopIteration(1)),
        ("fall", TimeoutError(1)),
        ("fall", concurrent.futures.CancelledError(1)),
        ("fall_later", SystemExit(1)),
        ("fall_later", TimeoutError(1)),
        ("fall_later", asyncio.CancelledError(1)),
    ):
        found = step(answer((tool, "{}")), Falls({"error": error}))
        assert found.messages[0]["content"] == f"error: {type(error).__name__}: 1"
        assert found.metrics == {"tools/calls": 1, "tools/errors": 1}


def test_a_plain_tool_sees_the_context_of_its_episode():
    async def step():
        WHO.set("me")
        return await Falls({}).step(answer(("who", "{}")))

    assert asyncio.run(step()).messages[0]["content"] == "me"
