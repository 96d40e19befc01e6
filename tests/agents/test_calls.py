import asyncio
import gc
import json
import tracemalloc
from functools import reduce

import pytest
from torch import Tensor

from gspo.agents import calls as module
from gspo.agents.calls import Calls, follow
from tests.agents.talking import chat
from tests.agents.tools import ASK, talked


def test_calls_are_evicted_by_version_and_by_size(monkeypatch):
    talk = chat(seed=2)
    _, calls = talked(talk, 3)
    talk.calls.evict(3)
    assert len(talk.calls) == 3
    talk.calls.evict(4)
    assert len(talk.calls) == talk.calls.held == 0
    two, few = Calls(), Calls()
    for call in calls[1:]:
        two.add(call)
    monkeypatch.setattr(module, "MOST", two.held)
    for call in calls:
        few.add(call)
    traces = [reduce(follow, (*call.rollout.prompt.messages, call.message), b"") for call in calls]
    assert [few.ending(trace) for trace in traces] == [[], [calls[1]], [calls[2]]]
    assert len(few) == 2 and few.held == two.held and few.get(calls[0].id) is None
    developer, system = ({"role": role, "content": "be brief"} for role in ("developer", "system"))
    assert follow(b"", developer) == follow(b"", system) != follow(b"x", system)


@pytest.mark.parametrize(("n", "words"), [(1, 1), (1, 200), (8, 200)])
def test_as_much_is_counted_as_they_take(n, words):
    """Against what Python allocates and what the tensors hold; the allocator's own losses come on top of that."""
    talk, text = chat(), json.dumps([*ASK, {"role": "user", "content": "the tool says " * words}])

    async def ask(times):
        for _ in range(times):
            await talk.turn(json.loads(text), n=n)  # as each request has its own
            talk.completer.heard.clear()

    asyncio.run(ask(10))
    begun, held = len(talk.calls), talk.calls.held
    tracemalloc.start()
    try:
        asyncio.run(ask(50))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rollouts = [vars(talk.calls.get(id).rollout) for id in list(talk.calls._by_id)[begun:]]
    assert len(rollouts) == 50 * n
    taken += sum(value.nbytes for rollout in rollouts for value in rollout.values() if isinstance(value, Tensor))
    assert taken < talk.calls.held - held < 3 * taken


def test_arguments_of_calls_may_be_written_anew():
    """JavaScript leaves out the spaces, and others write é as it is."""

    def called(arguments):
        function = {"name": "f", "arguments": arguments}
        return follow(b"", {"role": "assistant", "content": "", "tool_calls": [{"function": function}]})

    same = '{"a": "\\u00e9", "b": 1}', '{"a":"é","b":1}', {"a": "é", "b": 1}
    other = '{"a": "e", "b": 1}', '{"b": 1, "a": "é"}', "{oops", "[" * 10_000
    assert len({called(arguments) for arguments in same}) == 1
    assert len({called(arguments) for arguments in (same[0], *other)}) == 5
