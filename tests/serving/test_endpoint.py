"""The endpoint, asked by OpenAI's client and by clients that mean no good."""

import asyncio
import time

import httpx
import openai
import pytest
import torch

from gspo.learner import layout
from gspo.rollout.credit import completion_of
from tests.agents.talking import TOOLS
from tests.serving.served import post
from tests.serving.tools import ASK


def asked(model, **request):
    return asyncio.run(_asked(model, **request))


async def _asked(model, messages=ASK, **request):
    async with model.openai_client() as client:
        return await client.chat.completions.create(model="policy", messages=messages, **request)


def test_an_answer_is_what_was_sampled_with_the_policys_likelihoods(model):
    answer = asked(model, logprobs=True, tools=TOOLS)
    (choice,) = answer.choices
    call = model.chat.calls.get(choice.id)
    rollout = call.rollout
    assert choice.finish_reason in ("stop", "length") and answer.usage.completion_tokens == call.sampled <= 12
    assert answer.usage.prompt_tokens == len(rollout.prompt.tokens)
    told = [one.logprob for one in choice.logprobs.content]
    assert told == pytest.approx(rollout.logp[rollout.sampled].tolist())
    batch = layout.build([completion_of(rollout, 0.0)])
    with torch.no_grad():
        logp = model.run.policy.forward(batch).logp
    assert logp.tolist() == pytest.approx(told, abs=1e-5)
    assert rollout.routes is not None and call.unfit == ""


def test_n_seed_and_lengths(model):
    one, two = asked(model, n=3, seed=7), asked(model, n=3, seed=7)
    words = [choice.message.content for choice in one.choices]
    assert words == [choice.message.content for choice in two.choices] and len(set(words)) > 1
    assert asked(model, max_tokens=2).usage.completion_tokens <= 2
    assert asked(model, max_completion_tokens=3).usage.completion_tokens <= 3


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

        answers = asyncio.run(all_of_them())
    finally:
        del model.run.sampler.generate
    assert sum(sizes) == 20 and max(sizes) >= 5
    alone = asked(model, seed=3)  # whoever is sampled beside it changes nothing
    assert answers[3].choices[0].message.content == alone.choices[0].message.content


def test_streams(model):
    async def streamed():
        async with model.openai_client() as client:
            stream = await client.chat.completions.create(model="policy", messages=ASK, seed=7, n=2, stream=True)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(streamed())
    whole = asked(model, seed=7, n=2)
    for choice in whole.choices:
        deltas = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.delta.content or "" for one in deltas) == choice.message.content
        assert deltas[-1].finish_reason == choice.finish_reason and deltas[0].delta.role == "assistant"
        assert model.chat.calls.get(deltas[0].id) is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_and_models(model):
    async def all_of_it():
        async with model.openai_client() as client:
            done = await client.completions.create(model="policy", prompt="in the box ", n=2, seed=1, logprobs=1)
            stream = await client.completions.create(model="policy", prompt="in the box ", seed=1, stream=True)
            pieces = [piece async for piece in stream]
            return done, pieces, await client.models.list(), await client.models.retrieve("policy")

    done, pieces, listed, one = asyncio.run(all_of_it())
    assert len(done.choices) == 2 and len(done.choices[0].logprobs.tokens) == len(done.choices[0].logprobs.token_logprobs)
    assert "".join(choice.text for piece in pieces for choice in piece.choices) == done.choices[0].text
    assert [each.id for each in listed.data] == ["policy"] == [one.id]


def test_what_is_asked_by_nobody_is_not_kept(model):
    """A client that goes away before its answer."""
    before = len(model.chat.calls)
    with model.still:
        with pytest.raises(openai.APITimeoutError):
            asyncio.run(_gone(model))
        time.sleep(1)
    asked(model, seed=1)
    before += 1
    assert len(model.chat.calls) == before


async def _gone(model):
    async with model.openai_client(max_retries=0, timeout=1) as client:
        await client.chat.completions.create(model="policy", messages=ASK, n=4)


def test_the_smallest_top_p_leaves_the_likeliest_token(model):
    (least,), (best,) = [asked(model, **how).choices for how in ({"top_p": 5e-324}, {"temperature": 0})]
    assert least.message.content == best.message.content


def test_a_prompt_without_tokens_is_nobody_elses_fault(model):
    answer = post(model, "/completions", {"model": "policy", "prompt": ""})
    assert answer.status_code == 400 and "prompt" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 10_000])
def test_what_is_no_json(model, body):
    headers = {"authorization": f"Bearer {model.api_key}", "content-type": "application/json"}
    for path in ("/chat/completions", "/completions", "/train"):
        answer = httpx.post(f"{model.base_url}{path}", content=body, headers=headers)
        assert answer.status_code == 400 and answer.json()["error"]["message"]


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
    answer = post(model, "/train", {"groups": [{"trajectories": [trajectory]}]})
    assert answer.status_code == 400 and answer.json()["error"]["message"]
