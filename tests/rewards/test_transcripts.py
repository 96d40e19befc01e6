import pytest

import gspo
from gspo.rewards.transcripts import conversations, text_of

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("as it is", "as it is"),
        ([{"role": "user", "content": "alone"}], "alone"),
        ([{"role": "system", "content": "alone"}], "[system]\nalone"),
        (
            [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}, {"role": "assistant", "tool_calls": [CALL]}],
            '[user]\nab\n\n[assistant]\n{"name": "look", "arguments": "{\\"at\\": \\"é\\"}"}',
        ),
    ],
)
def test_a_prompt_as_text(messages, text):
    assert text_of(messages) == text


def test_a_trajectory_with_two_histories_is_one_conversation():
    first, second = ([{"role": "user", "content": word}] for word in "ab")
    group = gspo.TrajectoryGroup([gspo.Trajectory(first, additional_histories=[gspo.History(second)])])
    assert conversations(group) == [first + second]


def test_judges_and_reward_models_see_no_thinking():
    told = [{"role": "user", "content": "<think>?"}, {"role": "assistant", "content": "<think>two</think>2"}]
    (messages,) = conversations(gspo.TrajectoryGroup([gspo.Trajectory(told)]))
    assert messages == [told[0], {"role": "assistant", "content": "2"}]
    assert told[1]["content"] == "<think>two</think>2"  # what is trained on stays
