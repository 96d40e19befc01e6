"""Any OpenAI-compatible endpoint as the sampler of a benchmark: text in, text out."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from gspo.rewards.http_client import EndpointClient, Failed, Unreadable
from gspo.types import Prompt, Sampling

RETRIES = 5
"""Retries of a request after 429, 5xx or a lost connection, with growing waits."""
LIMITS = ("max_tokens", "max_completion_tokens")
"""The two names of the length limit: most servers know the first, and OpenAI's newer models accept only the second."""


class EndpointReply(NamedTuple):
    """A reply of the endpoint. `tokens`: as the endpoint counts them, thinking included; 0 if it reports none."""

    text: str
    tokens: int
    stop: str


class Endpoint:
    """Samples replies of `model` at an OpenAI-compatible endpoint. `timeout`: seconds for a reply, retries included."""

    def __init__(self, url: str, model: str, key: str, system: str, timeout: float, concurrent: int) -> None:
        """Raises ValueError without the package openai."""
        self.model, self.system = model, system
        self._limit = LIMITS[0]
        self.client = EndpointClient("the endpoint", url, key, timeout, RETRIES, concurrent)

    def begin(self, prompt: Prompt, seed: int, sampling: Sampling) -> Future[EndpointReply]:
        """Requests one reply. The future raises Failed or Unreadable."""
        asked = prompt.messages
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        if self.system:
            messages = [{"role": "system", "content": self.system}, *messages]
        request: dict[str, Any] = {"model": self.model, "messages": messages, "seed": seed}
        request["temperature"] = sampling.temperature
        if sampling.top_p < 1:
            request["top_p"] = sampling.top_p
        if sampling.top_k:
            request["extra_body"] = {"top_k": sampling.top_k}  # not part of OpenAI's API, but vLLM and SGLang accept it
        if sampling.stop:
            request["stop"] = list(sampling.stop)
        return self.client.run(self._ask(request, sampling.max_new_tokens))

    async def _ask(self, request: dict[str, Any], longest: int) -> EndpointReply:
        name = self._limit
        try:
            response = await self._send({**request, name: longest})
        except Failed as error:
            if name != LIMITS[0] or error.status != 400 or LIMITS[1] not in str(error):
                raise  # no guess: a server that ignores the second name would sample without limit
            try:
                response = await self._send({**request, LIMITS[1]: longest})
            except Failed:
                raise error from None
            self._limit = LIMITS[1]
        try:
            choice = response.choices[0]
            text, stop = choice.message.content or "", "length" if choice.finish_reason == "length" else "eos"
        except (AttributeError, IndexError, TypeError):
            raise Unreadable("the response holds no message") from None
        return EndpointReply(text, response.usage.completion_tokens if response.usage else 0, stop)

    async def _send(self, request: dict[str, Any]) -> Any:
        return await self.client.request(lambda client: client.chat.completions.create(**request))

    def close(self) -> None:
        """Cancels the requests in flight."""
        self.client.close()
