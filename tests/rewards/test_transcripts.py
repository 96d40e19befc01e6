import pytest

import gspo
from gspo.rewards.transcripts import NoOpinion, common_start, conversations, rewarded, text_of


def test_a_group_of_trajectories_with_rewards():
    group = gspo.TrajectoryGroup(
        [gspo.Trajectory([{"role": "user", "content": "q"}], metrics={"steps": 2.0}) for _ in range(3)], {"id": 7}
    )
    made = rewarded(group, [0.5, None, 2.0])
    assert [one.reward for one in made] == [0.5, 2.0]
    assert made.trajectories[0].metrics == {"steps": 2.0, "preference": 0.5} and made.metadata == {"id": 7}
    assert len(made.exceptions) == 1 and isinstance(made.exceptions[0], NoOpinion)
    assert [one.reward for one in group] == [0, 0, 0]  # as it was


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


def test_what_conversations_share_leaves_each_its_last_message():
    a, b, c = ({"role": "user", "content": name} for name in "abc")
    assert common_start([[a, b, c], [a, b, a]]) == 2
    assert common_start([[a, b], [a, b]]) == 1
    assert common_start([[a, b, c], [b, b, c]]) == 0
    assert common_start([[a, b, c], [a]]) == common_start([[]]) == common_start([]) == 0


def test_a_trajectory_with_two_histories_is_one_conversation():
    first, second = ([{"role": "user", "content": word}] for word in "ab")
    group = gspo.TrajectoryGroup([gspo.Trajectory(first, additional_histories=[gspo.History(second)])])
    assert conversations(group) == [first + second]


def test_judges_and_reward_models_see_no_thinking():
    told = [{"role": "user", "content": "<think>?"}, {"role": "assistant", "content": "<think>two</think>2"}]
    (messages,) = conversations(gspo.TrajectoryGroup([gspo.Trajectory(told)]))
    assert messages == [told[0], {"role": "assistant", "content": "2"}]
    assert told[1]["content"] == "<think>two</think>2"  # what is trained on stays
