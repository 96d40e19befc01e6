import pytest

from gspo.agents.request_options import NEUTRAL, check_granted


def test_what_asks_for_nothing_is_granted():
    check_granted({"user": "me", "metadata": {"any": "thing"}, "logit_bias": None, "unknown": None})
    check_granted({name: value for name, (value, *_) in NEUTRAL.items()})
    check_granted({"tool_choice": "none", "frequency_penalty": 0.0})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"frequency_penalty": 1}, "frequency_penalty = 1 cannot be granted"),
        ({"min_p": False}, "min_p = False"),  # False is no 0 here
        ({"echo": 0}, "echo = 0"),
        ({"tool_choice": "required"}, "tool_choice = 'required'"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls = False"),
        ({"presence_penality": 0}, "did you mean presence_penalty"),
        ({"guided_regex": "a*"}, "guided_regex"),
    ],
)
def test_what_cannot_be_done_is_refused(options, named):
    with pytest.raises(ValueError, match=named):
        check_granted({"user": "me"} | options)
