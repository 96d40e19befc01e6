import dataclasses

import gspo
from tests.agents.talking import TOOLS
from tests.serving.served import ASK, GOOD, post


def called(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def test_bad_requests_are_answered_with_the_reason(model, subtests):
    for number, (body, status, why) in enumerate(
        [
            ({}, 400, "model"),
            ({"model": "policy"}, 400, "messages"),
            (GOOD | {"model": "gpt-4"}, 404, "it is 'policy'"),
            (GOOD | {"messages": []}, 400, "at least 1"),
            (GOOD | {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
            (GOOD | {"messages": [{"role": "user"}]}, 400, "without content"),
            (GOOD | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
            (GOOD | {"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "reads at most 512"),
            (GOOD | {"messages": [*ASK, called("[" * 10_000), {"role": "tool", "content": "x"}]}, 400, "reads at most 512"),
            (GOOD | {"n": 0}, 400, "n:"),
            (GOOD | {"n": "1"}, 400, "n:"),
            (GOOD | {"seed": -1}, 400, "seed:"),
            (GOOD | {"temperature": 1e-300}, 400, "at least 0.01"),
            (GOOD | {"stop": [""]}, 400, "stop."),
            (GOOD | {"response_format": {"type": "json_object"}}, 400, "response_format"),
            (GOOD | {"tools": [{"type": "function"}]}, 400, "tools"),
            (
                GOOD | {"messages": [*ASK, {"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
                400,
                "tool_calls",
            ),
            (GOOD | {"messages": [*ASK, {"role": "assistant", "content": "", "audio": {"id": "a"}}]}, 400, "'audio'"),
        ]
    ):
        with subtests.test(number=number, why=why):
            answer = post(model, "/chat/completions", body)
            assert answer.status_code == status and why in answer.json()["error"]["message"]


def test_neutral_settings_are_granted(model):
    more = {"frequency_penalty": 0, "response_format": {"type": "text"}, "tool_choice": "auto", "user": "me"}
    assert post(model, "/chat/completions", GOOD | more | {"logit_bias": None}).status_code == 200
    sizes = [
        post(model, "/chat/completions", GOOD | {"tools": TOOLS, "tool_choice": choice}).json()["usage"]["prompt_tokens"]
        for choice in ("auto", "none")
    ]
    assert sizes[0] > sizes[1] == post(model, "/chat/completions", GOOD).json()["usage"]["prompt_tokens"]


TRAJECTORY = {"messages_and_choices": ASK, "reward": 1.0}


def test_a_key_of_training_that_is_not_known_is_refused(model):
    for more, group, trajectory, history, why in (
        ({"beta": 0.1}, {}, {}, {}, "beta: "),
        ({}, {"reward": [1.0]}, {}, {}, "groups.0.reward: "),
        ({}, {}, {"rewards": 1.0}, {}, "groups.0.trajectories.0.rewards: "),
        ({}, {}, {}, {"reward": 1.0}, "groups.0.trajectories.0.additional_histories.0.reward: "),
    ):
        histories = {"additional_histories": [{"messages_and_choices": ASK} | history]}
        body = {"groups": [{"trajectories": [TRAJECTORY | histories | trajectory]} | group]} | more
        answer = post(model, "/train", body)
        assert answer.status_code == 400
        assert why + "Extra inputs are not permitted" in answer.json()["error"]["message"]


def test_a_whole_trajectory_of_ours_or_of_art_is_read(model):
    ours = dataclasses.asdict(gspo.Trajectory(ASK, 1.0, additional_histories=[{"messages_and_choices": ASK, "tools": []}]))
    arts = TRAJECTORY | {"tools": None, "initial_policy_version": 1, "final_policy_version": None, "logs": ["x"]}
    body = {"groups": [{"trajectories": [ours, arts], "exceptions": [{"type": "E", "message": "x"}], "metadata": {}}]}
    body["groups"][0] |= {"metrics": {"a": 1}, "logs": []}
    message = post(model, "/train", body).json()["error"]["message"]
    assert "nothing to train on" in message and "1 trajectories: the agent ended in an exception" in message
