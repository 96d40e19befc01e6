"""What reward functions are called with. The functions here have the signatures that TRL's documentation shows."""

import pytest
import torch

from gspo.rewards.arguments import Arguments, TrainerState
from gspo.rewards.graders import RewardInput
from tests.data.tools import rollout
from tests.rewards.tools import in_process, named

CHAT = [{"role": "user", "content": "say it"}]


def called(function, *prompts, **columns):
    """The arguments of a call for the completion "hi" to each prompt."""
    state = TrainerState(3, 9)
    rows = [RewardInput(prompt, "hi", "", columns, ids=[5, 6], state=state) for prompt in prompts]
    return Arguments(function).of(rows, lambda row: row.completion)


def test_ours_get_text_and_theirs_messages():
    message = [{"role": "assistant", "content": "hi"}]
    for function in (lambda prompts, completions, **columns: 0, lambda **columns: 0, lambda completions, answer: 0):
        assert called(function, CHAT, "text")["completions"] == ["hi", "hi"]
    for function in (
        lambda completions, completion_ids: 0,
        lambda prompts, completions, trainer_state=None, **kwargs: 0,
        lambda prompts, completions, log_extra=None, **kwargs: 0,
    ):
        assert called(function, CHAT, "text")["completions"] == [message, "hi"]


def test_a_function_of_trl_that_names_nothing_of_it_is_told_how():
    with in_process(lambda completions: [float(len(one[0]["content"])) for one in completions]) as rewards:
        error = rewards.score([rollout("hi")])[0].error
    assert "string indices must be integers" in error and "; if it expects TRL's messages, add a parameter" in error


def test_each_gets_what_it_names():
    given = called(lambda completions, answer, missing=1: 0, "a", answer="b", other="c")
    assert given == {"completions": ["hi"], "answer": ["b"]}
    given = called(lambda completion_ids, **kwargs: 0, "a", "b", answer="c")
    assert set(given) == {"prompts", "completions", "completion_ids", "trainer_state", "answer"}
    assert given["completion_ids"] == [[5, 6], [5, 6]] and given["prompts"] == ["a", "b"]


def test_a_completion_that_goes_on_with_a_message_is_one_with_it():
    begun = [*CHAT, {"role": "assistant", "content": "Oh, "}]
    given = called(lambda prompts, completions, completion_ids: 0, begun)
    assert given["completions"] == [[{"role": "assistant", "content": "Oh, hi"}]]
    assert given["prompts"] == [CHAT] and len(begun) == 2
    begun[-1]["content"] = [{"type": "text", "text": "Oh, "}]
    assert called(lambda prompts, completions, completion_ids: 0, begun)["completions"] == given["completions"]


def test_what_gspo_does_not_have_is_said_before_the_run():
    def wants(completions, log_extra, **kwargs):
        """As TRL calls it."""

    with pytest.raises(ValueError, match=r"function wants: gspo has no 'log_extra' for it, .* give it the default None"):
        in_process(wants)
    assert "log_extra" not in called(lambda completions, log_extra=None, **kwargs: 0, "a")


def test_a_worker_hands_over_the_same(monkeypatch):
    def local(prompts, completions, completion_ids, trainer_state, **columns):
        return [sum(ids) + trainer_state.global_step / trainer_state.max_steps for ids in completion_ids]

    sampled = rollout("hi", prompt=CHAT)
    sampled = type(sampled)(**(vars(sampled) | {"tokens": torch.tensor([1, 40, 2])}))
    for rewards in (named("in_the_shape_of_trl"), in_process(local)):
        with rewards:
            rewards.at(1, 4)
            assert [r.reward for r in rewards.score([sampled, sampled])] == [42.25, 42.25]
            rewards.at(2, 4)
            assert rewards.score([sampled])[0].reward == 42.5
