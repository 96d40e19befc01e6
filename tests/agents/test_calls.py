from functools import reduce

from gspo.agents.calls import Calls, follow, size
from tests.agents.talking import chat
from tests.agents.tools import talked


def test_calls_are_forgotten_by_age_and_by_number():
    talk = chat(seed=2)
    _, calls = talked(talk, 3)
    assert talk.calls.forget(3) == 0 and talk.calls.forget(4) == 3 and len(talk.calls) == 0
    few = Calls(most=size(calls[1]) + size(calls[2]))
    for call in calls:
        few.add(call)
    traces = [reduce(follow, (*call.messages, call.message), b"") for call in calls]
    assert [few.ending(trace) for trace in traces] == [[], [calls[1]], [calls[2]]]
    assert len(few) == 2 and few.get(calls[0].id) is None
    developer, system = ({"role": role, "content": "be brief"} for role in ("developer", "system"))
    assert follow(b"", developer) == follow(b"", system) != follow(b"x", system)
