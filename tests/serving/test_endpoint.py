"""The endpoint, asked by OpenAI's client and by clients that mean no good."""

import asyncio
import contextlib
import time

import pytest
import torch

from gspo.learner import layout
from gspo.rollout.credit import completion_of
from tests.agents.talking import TOOLS
from tests.serving.served import ASK, server_of


def respond(model, **request):
    async def ask():
        async with model.openai_client() as client:
            return await client.chat.completions.create(model="policy", messages=ASK, **request)

    return asyncio.run(ask())


def test_an_answer_is_what_was_sampled_with_the_policys_likelihoods(model):
    response = respond(model, logprobs=True, tools=TOOLS)
    (choice,) = response.choices
    call = model.chat.calls.get(choice.id)
    rollout = call.rollout
    assert choice.finish_reason in ("stop", "length") and response.usage.completion_tokens == call.sampled <= 12
    assert response.usage.prompt_tokens == len(rollout.prompt.tokens)
    likelihoods = [token.logprob for token in choice.logprobs.content]
    assert likelihoods == pytest.approx(rollout.logp[rollout.sampled].tolist())
    parts = [(token.token, token.bytes) for token in choice.logprobs.content]
    assert all(bytes(given).decode() == text if given is not None else "\ufffd" in text for text, given in parts)
    batch = layout.build([completion_of(rollout, 0.0)])
    with torch.no_grad():
        logp = model.run.learner.policy.forward(batch).logp
    assert logp.tolist() == pytest.approx(likelihoods, abs=1e-5)
    assert rollout.routes is not None and call.untrainable == ""


def test_n_seed_and_lengths(model):
    first, second = respond(model, n=3, seed=7), respond(model, n=3, seed=7)
    words = [choice.message.content for choice in first.choices]
    assert words == [choice.message.content for choice in second.choices] and len(set(words)) > 1
    assert respond(model, max_tokens=2).usage.completion_tokens <= 2
    assert respond(model, max_completion_tokens=3).usage.completion_tokens <= 3


def test_streams(model):
    async def streamed(**more):
        async with model.openai_client() as client:
            stream = await client.chat.completions.create(model="policy", messages=ASK, seed=7, n=2, stream=True, **more)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(streamed())
    response = respond(model, seed=7, n=2)
    for choice in response.choices:
        pieces = [piece for chunk in chunks for piece in chunk.choices if piece.index == choice.index]
        assert "".join(piece.delta.content or "" for piece in pieces) == choice.message.content
        assert pieces[-1].finish_reason == choice.finish_reason and pieces[0].delta.role == "assistant"
        assert model.chat.calls.get(pieces[0].id) is not None
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    *_, last = asyncio.run(streamed(stream_options={"include_usage": True}))
    assert not last.choices and last.usage.completion_tokens == response.usage.completion_tokens


def test_models(model):
    async def all_of_it():
        async with model.openai_client() as client:
            return await client.models.list(), await client.models.retrieve("policy")

    listed, named = asyncio.run(all_of_it())
    assert [one.id for one in listed.data] == ["policy"] == [named.id]


def test_what_is_asked_by_nobody_is_not_kept(model):
    """A client that goes away before its response."""
    before, under_way = len(model.chat.calls), server_of(model).server_state.tasks

    async def disconnect():
        async with model.openai_client(max_retries=0) as client:
            asking = asyncio.ensure_future(client.chat.completions.create(model="policy", messages=ASK, n=4))
            while not under_way:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking

    with model.still:
        asyncio.run(disconnect())
        while under_way:  # until that is noticed
            time.sleep(0.01)
    respond(model, seed=1)
    assert len(model.chat.calls) == before + 1
