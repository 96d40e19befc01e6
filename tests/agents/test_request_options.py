import pytest

from gspo.agents.chat import TurnOptions
from gspo.agents.request_options import check_granted, turn_options


def test_what_cannot_be_done_is_refused():
    for options, named in (
        ({"frequency_penalty": 1}, "frequency_penalty = 1 cannot be granted"),
        ({"tool_choice": "required"}, "tool_choice = 'required'"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls = False"),
        ({"presence_penality": 0}, "did you mean presence_penalty"),
        ({"temprature": 1}, "did you mean temperature"),
        ({"guided_regex": "a*"}, "guided_regex"),
        ({"min_p": False}, "min_p = False cannot be granted"),
        ({"echo": 0}, "echo = 0 cannot be granted"),
    ):
        with pytest.raises(ValueError, match=named):
            check_granted({"user": "me"} | options, ("temperature",))


def test_both_limits_of_a_turn_hold():
    assert turn_options({"max_tokens": 5, "max_completion_tokens": 3, "stop": "a"}, 1) == TurnOptions(3, stop=("a",), seed=1)
    assert turn_options({"max_tokens": None, "stop": ["a", "b"]}, None) == TurnOptions(stop=("a", "b"))
