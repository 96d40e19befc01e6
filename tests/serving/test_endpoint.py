"""The endpoint, asked by OpenAI's client and by clients that mean no good."""

import asyncio
import json
import time
from functools import reduce

import httpx
import openai
import pytest
import torch

from gspo.learner import layout
from gspo.rollout.credit import completion_of
from tests.agents.talking import TOOLS
from tests.serving.served import post, serving

ASK = [{"role": "user", "content": "what is in the box"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve") / "run", serve={"max_body": 20_000, "max_concurrent": 24}) as served:
        yield served


def respond(model, **request):
    return asyncio.run(_respond(model, **request))


async def _respond(model, messages=ASK, **request):
    async with model.openai_client() as client:
        return await client.chat.completions.create(model="policy", messages=messages, **request)


def test_an_answer_is_what_was_sampled_with_the_policys_likelihoods(model):
    response = respond(model, logprobs=True, tools=TOOLS)
    (choice,) = response.choices
    call = model.chat.calls.get(choice.id)
    rollout = call.rollout
    assert choice.finish_reason in ("stop", "length") and response.usage.completion_tokens == call.sampled <= 12
    assert response.usage.prompt_tokens == len(rollout.prompt.tokens)
    likelihoods = [token.logprob for token in choice.logprobs.content]
    assert likelihoods == pytest.approx(rollout.logp[rollout.sampled].tolist())
    batch = layout.build([completion_of(rollout, 0.0)])
    with torch.no_grad():
        logp = model.run.learner.policy.forward(batch).logp
    assert logp.tolist() == pytest.approx(likelihoods, abs=1e-5)
    assert rollout.routes is not None and call.unfit == ""


def test_n_seed_and_lengths(model):
    first, second = respond(model, n=3, seed=7), respond(model, n=3, seed=7)
    words = [choice.message.content for choice in first.choices]
    assert words == [choice.message.content for choice in second.choices] and len(set(words)) > 1
    assert respond(model, max_tokens=2).usage.completion_tokens <= 2
    assert respond(model, max_completion_tokens=3).usage.completion_tokens <= 3


def test_many_at_once_are_sampled_together(model):
    sizes, generate = [], model.run.sampler.generate

    def counted(prompts, n, sampling):
        sizes.append(len(prompts))
        return generate(prompts, n, sampling)

    model.run.sampler.generate = counted
    try:

        async def all_of_them():
            async with model.openai_client() as client:
                asks = [client.chat.completions.create(model="policy", messages=ASK, seed=i) for i in range(20)]
                return await asyncio.gather(*asks)

        responses = asyncio.run(all_of_them())
    finally:
        del model.run.sampler.generate
    assert sum(sizes) == 20 and max(sizes) >= 5
    alone = respond(model, seed=3)  # whoever is sampled beside it changes nothing
    assert responses[3].choices[0].message.content == alone.choices[0].message.content


def test_streams(model):
    async def streamed():
        async with model.openai_client() as client:
            stream = await client.chat.completions.create(model="policy", messages=ASK, seed=7, n=2, stream=True)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(streamed())
    response = respond(model, seed=7, n=2)
    for choice in response.choices:
        pieces = [piece for chunk in chunks for piece in chunk.choices if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert pieces[-1].finish_reason == choice.finish_reason and pieces[0].delta.role == "assistant"
        assert model.chat.calls.get(pieces[0].id) is not None
    assert chunks[-1].usage.completion_tokens == response.usage.completion_tokens


def test_completions_and_models(model):
    async def all_of_it():
        async with model.openai_client() as client:
            completion = await client.completions.create(model="policy", prompt="in the box ", n=2, seed=1, logprobs=1)
            stream = await client.completions.create(model="policy", prompt="in the box ", seed=1, stream=True)
            pieces = [piece async for piece in stream]
            return completion, pieces, await client.models.list(), await client.models.retrieve("policy")

    completion, pieces, listed, model_named = asyncio.run(all_of_it())
    assert len(completion.choices) == 2 and len(completion.choices[0].logprobs.tokens) == len(
        completion.choices[0].logprobs.token_logprobs
    )
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == completion.choices[0].text
    assert [model_listed.id for model_listed in listed.data] == ["policy"] == [model_named.id]


def test_what_is_asked_by_nobody_is_not_kept(model):
    """A client that goes away before its response."""
    before = len(model.chat.calls)
    with model.still:
        with pytest.raises(openai.APITimeoutError):
            asyncio.run(_disconnecting(model))
        time.sleep(1)
    respond(model, seed=1)
    before += 1
    assert len(model.chat.calls) == before


async def _disconnecting(model):
    async with model.openai_client(max_retries=0, timeout=1) as client:
        await client.chat.completions.create(model="policy", messages=ASK, n=4)


GOOD = {"model": "policy", "messages": ASK}


def deep(levels):
    return reduce(lambda inner, _: [inner], range(levels), 1)


def called(arguments):
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        ({}, 400, "model"),
        ({"model": "policy"}, 400, "messages"),
        (GOOD | {"model": "gpt-4"}, 404, "it is 'policy'"),
        (GOOD | {"messages": []}, 400, "at least 1"),
        (GOOD | {"messages": "hello"}, 400, "messages"),
        (GOOD | {"messages": [{"role": "king", "content": "x"}]}, 400, "role"),
        (GOOD | {"messages": [{"role": "user"}]}, 400, "without content"),
        (GOOD | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400, "messages"),
        (GOOD | {"messages": [{"role": "user", "content": "\ud800"}]}, 400, "unicode"),
        (GOOD | {"messages": [{"role": "user", "content": "x " * 2000}]}, 400, "reads at most 512"),
        (GOOD | {"messages": [{"role": "user", "content": "x", "more": deep(101)}]}, 400, "100 levels deep"),
        pytest.param(json.dumps(GOOD)[:-1] + ', "user": ' + "[" * 950 + "]" * 950 + "}", 400, "", id="nested"),
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
        (GOOD | {"stop": [""]}, 400, "none of them empty"),
        (GOOD | {"frequency_penalty": 1}, 400, "frequency_penalty = 1 cannot be granted"),
        (GOOD | {"response_format": {"type": "json_object"}}, 400, "response_format"),
        (GOOD | {"tool_choice": "required", "tools": TOOLS}, 400, "tool_choice"),
        (GOOD | {"tools": [{"type": "function"}]}, 400, "tools"),
    ],
)
def test_bad_requests_are_answered_with_the_reason(model, body, status, why):
    content = body if isinstance(body, str) else json.dumps(body)
    headers = {"authorization": f"Bearer {model.api_key}", "content-type": "application/json"}
    response = httpx.post(f"{model.base_url}/chat/completions", content=content, headers=headers)
    assert response.status_code == status and why in response.json()["error"]["message"]


def test_neutral_settings_are_granted(model):
    settings = {
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "user": "me",
        "logit_bias": None,
    }
    assert post(model, "/chat/completions", GOOD | settings).status_code == 200


def test_the_smallest_top_p_leaves_the_likeliest_token(model):
    (least,), (best,) = [respond(model, **settings).choices for settings in ({"top_p": 5e-324}, {"temperature": 0})]
    assert least.message.content == best.message.content


def test_a_prompt_without_tokens_is_nobody_elses_fault(model):
    response = post(model, "/completions", {"model": "policy", "prompt": ""})
    assert response.status_code == 400 and "prompt" in response.json()["error"]["message"]


def test_the_document_tells_what_is_granted(model):
    headers = {"authorization": f"Bearer {model.api_key}"}
    document = httpx.get(model.base_url.removesuffix("/v1") + "/openapi.json", headers=headers).json()
    asking = document["components"]["schemas"]["ChatRequest"]
    assert asking["properties"]["model"]["enum"] == ["policy"] and not asking["additionalProperties"]
    assert asking["properties"]["min_p"]["enum"] == [0, None] and asking["properties"]["user"] == {}
    responses = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert "422" not in responses and set(responses["200"]["content"]) == {"application/json", "text/event-stream"}


def test_who_has_no_key_gets_nothing(model):
    for key in ("y", "x", model.api_key[:-1]):
        response = post(model, "/chat/completions", GOOD, key=key)
        assert response.status_code == 401 and "API key" in response.json()["error"]["message"]
    assert httpx.get(f"{model.base_url}/models").status_code == 401
    assert httpx.get(model.base_url.removesuffix("/v1") + "/health").status_code == 200


def test_what_is_too_large_is_refused_with_and_without_a_length(model):
    large = GOOD | {"messages": [{"role": "user", "content": "x" * 30_000}]}
    assert post(model, "/chat/completions", large).status_code == 413
    content = json.dumps(large).encode()
    headers = {"authorization": f"Bearer {model.api_key}", "content-type": "application/json"}
    parts = (content[i : i + 1000] for i in range(0, len(content), 1000))
    assert httpx.post(f"{model.base_url}/chat/completions", content=parts, headers=headers).status_code == 413


def test_what_is_too_much_is_refused(model):
    async def flood():
        async with model.openai_client(max_retries=0) as client:
            asks = [client.chat.completions.create(model="policy", messages=ASK) for _ in range(80)]
            return await asyncio.gather(*asks, return_exceptions=True)

    outcomes = asyncio.run(flood())
    refused = [outcome for outcome in outcomes if isinstance(outcome, openai.RateLimitError)]
    assert refused and len(refused) + sum(hasattr(outcome, "choices") for outcome in outcomes) == 80


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 10_000])
def test_what_is_no_json(model, body):
    headers = {"authorization": f"Bearer {model.api_key}", "content-type": "application/json"}
    for path in ("/chat/completions", "/completions", "/train"):
        response = httpx.post(f"{model.base_url}{path}", content=body, headers=headers)
        assert response.status_code == 400 and response.json()["error"]["message"]


@pytest.mark.parametrize(
    "trajectory",
    [
        {"messages_and_choices": [], "reward": 1, "additional_histories": [{}]},
        {"messages_and_choices": [{"role": "user", "content": 5}], "reward": 1},
        {"messages_and_choices": [{"role": "assistant", "content": [{"type": "image_url"}]}], "reward": 1},
        {"messages_and_choices": [{"role": "assistant", "content": "x", "tool_calls": [5]}], "reward": 1},
        {"messages_and_choices": [{"role": "assistant", "content": "x", "tool_calls": [{"function": 5}]}], "reward": 1},
        {"messages_and_choices": [{"role": "assistant", "content": "x", "id": []}], "reward": 1},
        {"messages_and_choices": [{"message": 5}], "reward": 1},
        {"messages_and_choices": ["message"], "reward": 1},
        {"messages_and_choices": [], "reward": 1, "metrics": {"a": "x"}},
    ],
)
def test_trajectories_that_are_none_are_no_error_of_ours(model, trajectory):
    response = post(model, "/train", {"groups": [{"trajectories": [trajectory]}]})
    assert response.status_code == 400 and response.json()["error"]["message"]
