import dataclasses
import json
from functools import reduce

import gspo
from tests.agents.talking import TOOLS
from tests.serving.served import post
from tests.serving.tools import ASK, GOOD


def deep(levels):
    return reduce(lambda inner, _: [inner], range(levels), 1)


def called(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def test_bad_requests_are_answered_with_the_reason(model, subtests):
    for number, (body, status, why) in enumerate(
        [
            ({}, 400, "model"),
            ({"model": "policy"}, 400, "messages"),
            (GOOD | {"model": "gpt-4"}, 404, "it is 'policy'"),
            (GOOD | {"messages": []}, 400, "at least 1"),
            (GOOD | {"messages": "hello"}, 400, "messages"),
            (GOOD | {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
            (GOOD | {"messages": [{"role": "user"}]}, 400, "without content"),
            (
                GOOD | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
                400,
                "messages",
            ),
            (GOOD | {"messages": [{"role": "user", "content": "\ud800"}]}, 400, "surrogate"),
            (GOOD | {"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "reads at most 512"),
            (GOOD | {"messages": [{"role": "user", "content": "x", "more": deep(101)}]}, 400, "100 levels deep"),
            (json.dumps(GOOD)[:-1] + ', "user": ' + "[" * 950 + "]" * 950 + "}", 400, ""),
            (GOOD | {"messages": [*ASK, called("[" * 10_000), {"role": "tool", "content": "x"}]}, 400, "reads at most 512"),
            (GOOD | {"n": 0}, 400, "n:"),
            (GOOD | {"n": "1"}, 400, "n:"),
            (GOOD | {"stream": "yes"}, 400, "stream"),
            (GOOD | {"logprobs": 1}, 400, "logprobs"),
            (GOOD | {"temperature": 1e-300}, 400, "at least 0.01"),
            (GOOD | {"min_p": False}, 400, "min_p"),
            (GOOD | {"n": 100000}, 400, "n:"),
            (GOOD | {"temperature": -1}, 400, "temperature"),
            (GOOD | {"top_p": 0}, 400, "top_p"),
            (GOOD | {"max_tokens": 0}, 400, "max_tokens"),
            (GOOD | {"stop": [""]}, 400, "stop."),
            (GOOD | {"frequency_penalty": 1}, 400, "frequency_penalty = 1 cannot be granted"),
            (GOOD | {"response_format": {"type": "json_object"}}, 400, "response_format"),
            (GOOD | {"tool_choice": "required", "tools": TOOLS}, 400, "tool_choice"),
            (GOOD | {"tools": [{"type": "function"}]}, 400, "tools"),
            (GOOD | {"temprature": 0.5}, 400, "did you mean temperature"),
            (GOOD | {"parallel_tool_calls": False}, 400, "parallel_tool_calls"),
            (GOOD | {"messages": [*ASK, {"role": "assistant", "content": "", "function_call": {}}]}, 400, "tool_calls"),
        ]
    ):
        with subtests.test(number=number, why=why):
            content = body if isinstance(body, str) else json.dumps(body)
            answer = post(model, "/chat/completions", content=content)
            assert answer.status_code == status and why in answer.json()["error"]["message"]


def test_neutral_settings_are_granted(model):
    more = {"frequency_penalty": 0, "response_format": {"type": "text"}, "tool_choice": "auto", "user": "me"}
    assert post(model, "/chat/completions", GOOD | more | {"logit_bias": None}).status_code == 200
    sizes = [
        post(model, "/chat/completions", GOOD | {"tools": TOOLS, "tool_choice": choice}).json()["usage"]["prompt_tokens"]
        for choice in ("auto", "none")
    ]
    assert sizes[0] > sizes[1] == post(model, "/chat/completions", GOOD).json()["usage"]["prompt_tokens"]


def test_the_document_tells_what_is_granted(model):
    told = post(model, "/../openapi.json", method="GET").json()
    asking = told["components"]["schemas"]["ChatRequest"]
    assert asking["properties"]["model"]["enum"] == ["policy"] and not asking["additionalProperties"]
    assert asking["properties"]["min_p"]["enum"] == [0, None] and asking["properties"]["user"] == {}
    answers = told["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "422" not in answers and set(answers["200"]["content"]) == {"application/json", "text/event-stream"}


TRAJECTORY = {"messages_and_choices": ASK, "reward": 1.0}


def test_a_key_of_training_that_is_not_known_is_refused(model):
    for more, group, trajectory, history, why in (
        ({"learning_rte": 1e-3}, {}, {}, {}, "unknown key 'learning_rte', did you mean learning_rate? Known are groups"),
        ({"beta": 0.1}, {}, {}, {}, "unknown key 'beta'. Known are groups, learning_rate, importance_sampling_level"),
        ({}, {"reward": [1.0]}, {}, {}, "groups.0: "),
        ({}, {}, {"rewards": 1.0}, {}, "groups.0.trajectories.0: "),
        ({}, {}, {"turn_reward": [1.0]}, {}, "did you mean turn_rewards?"),
        ({}, {}, {}, {"reward": 1.0}, "groups.0.trajectories.0.additional_histories.0: "),
    ):
        histories = {"additional_histories": [{"messages_and_choices": ASK} | history]}
        body = {"groups": [{"trajectories": [TRAJECTORY | histories | trajectory]} | group]} | more
        answer = post(model, "/train", body)
        assert answer.status_code == 400
        message = answer.json()["error"]["message"]
        assert why in message and "unknown key" in message


def test_a_whole_trajectory_of_ours_or_of_art_is_read(model):
    ours = dataclasses.asdict(gspo.Trajectory(ASK, 1.0, additional_histories=[{"messages_and_choices": ASK, "tools": []}]))
    arts = TRAJECTORY | {"tools": None, "initial_policy_version": 1, "final_policy_version": None, "logs": ["x"]}
    body = {"groups": [{"trajectories": [ours, arts], "exceptions": [{"type": "E", "message": "x"}], "metadata": {}}]}
    body["groups"][0] |= {"metrics": {"a": 1}, "logs": []}
    message = post(model, "/train", body).json()["error"]["message"]
    assert "nothing to train on" in message and "1 trajectories: the agent ended in an exception" in message
