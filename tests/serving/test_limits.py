import asyncio
import json

import httpx
import openai

from tests.patience import PATIENCE
from tests.serving.served import ASK, GOOD, post


def test_who_has_no_key_gets_nothing(model):
    for key in ("y", model.api_key[:-1]):
        answer = post(model, "/chat/completions", GOOD, key=key)
        assert answer.status_code == 401 and "API key" in answer.json()["error"]["message"]
    assert httpx.get(f"{model.base_url}/models", timeout=PATIENCE).status_code == 401
    assert httpx.get(model.base_url.removesuffix("/v1") + "/health", timeout=PATIENCE).status_code == 200


def test_methods_that_there_are_none_of(model):
    for method in ("OPTIONS", "PUT"):
        assert post(model, "/train", method=method, key="x").status_code == 401
        answer = post(model, "/train", method=method)
        assert answer.status_code == 405 and answer.json()["error"]["message"]


def test_what_is_too_large_is_refused_with_and_without_a_length(model):
    content = json.dumps(GOOD | {"messages": [{"role": "user", "content": "x" * 30_000}]}).encode()
    for given in (content, (content[i : i + 1000] for i in range(0, len(content), 1000))):
        assert post(model, "/chat/completions", content=given).status_code == 413


def test_what_is_too_much_is_refused(model):
    async def flood():
        async with model.openai_client(max_retries=0) as client:
            asks = [client.chat.completions.create(model="policy", messages=ASK) for _ in range(80)]
            return await asyncio.gather(*asks, return_exceptions=True)

    found = asyncio.run(flood())
    refused = [one for one in found if isinstance(one, openai.RateLimitError)]
    assert refused and len(refused) + sum(hasattr(one, "choices") for one in found) == 80
