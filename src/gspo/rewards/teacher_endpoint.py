"""The teacher of on-policy distillation behind an endpoint, which returns log-probabilities of the tokens that it is sent.

Requests and answers are those of vLLM's `/v1/completions` with `prompt_logprobs`: token ids in, and for each position a dict
from token id to log-probability. They are of the plain distribution, at temperature 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from gspo.config.policy import TeacherConfig
from gspo.interfaces import Scorer, TeacherFailed
from gspo.rewards.http_client import EndpointClient, Failed, api_key_of
from gspo.safe import without_logins
from gspo.types import Rollout

PROBED = 256  # tokens of the first request
NONE = -9999.0  # what vLLM writes for a log-probability of minus infinity, which JSON lacks
ROUNDING = 1e-3  # nats by which a log-probability may exceed 0
REPLACED = "\ufffd"  # in the text of a token that is no whole character


class TeacherEndpoint:
    """The teacher behind `teacher.url`. Whole sequences are sent, each in a request of its own."""

    def __init__(self, config: TeacherConfig) -> None:
        """Raises ValueError if the API key is not in its environment variable, or openai is missing."""
        key, url = api_key_of(config.key_variable, "teacher.key_variable"), config.url or ""
        self.config, self.where = config, f"teacher.url = {without_logins(url)!r}, teacher.path = {config.path!r}"
        self.context: int | None = None  # tokens of a request, once checked; None: unknown
        self.endpoint = EndpointClient("teacher", url, key, config.timeout, config.retries, config.max_concurrent)
        self.close = self.endpoint.close

    def check(self, tokenizer: Any, needed: int | None) -> None:
        """Sends one short sequence. Raises ValueError if the endpoint cannot be reached or returns no log-probabilities, if
        its model has other tokens than `tokenizer`, or a context below `needed` tokens (None: unknown).
        """
        try:
            self.context = context = self.endpoint.run(self._context()).result()
            if needed is not None and context is not None and context < needed:
                raise Failed(
                    f"its max_model_len is {context}, but this run needs {needed}: start the server with as much, or lower "
                    "rollout.max_completion_length"
                )
            ids = probe(tokenizer, min(PROBED, (context or PROBED) - 1))
            positions = self.endpoint.run(self._positions(ids)).result()
            for id, position in list(zip(ids, positions))[1:]:
                logprob_of(position, id)
                here, there = tokenizer.decode([id]), str(position[str(id)].get("decoded_token"))
                if REPLACED not in here and there.strip() not in (here.strip(), tokenizer.convert_ids_to_tokens(id)):
                    wrong = f"another vocabulary than the model's: {id} is {here!r} here and {there!r} there"
                    raise Failed(f"{wrong}; choose a teacher with the same token ids")
        except Failed as error:
            raise ValueError(f"{self.where}: {error}") from None

    def read(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts, those with a reward with log pi_T of their tokens. Raises TeacherFailed if one is not answered."""
        rows = [i for i, rollout in enumerate(rollouts) if rollout.reward is not None]
        work = [(i, path) for i in rows for path in paths(rollouts[i])]
        logp = {i: torch.zeros(len(rollouts[i].tokens)) for i in rows}

        async def every() -> list[list[float]]:
            try:
                async with asyncio.TaskGroup() as group:  # cancels the others if one fails
                    asked = [group.create_task(self._path(rollouts[i], path)) for i, path in work]
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
            return [each.result() for each in asked]

        try:
            answers = self.endpoint.run(every()).result()
        except Failed as error:
            raise TeacherFailed(f"{self.where}: {error}") from None
        for (i, path), values in zip(work, answers):
            logp[i][path] = torch.tensor(values)
        return [replace(rollout, logp_teacher=logp.get(i)) for i, rollout in enumerate(rollouts)]

    # The methods below run in the client's own event loop.

    async def _path(self, rollout: Rollout, path: list[int]) -> list[float]:
        """Log pi_T of the sampled tokens among these, and 0 for the others. Raises Failed."""
        ids, sampled = rollout.tokens[path].tolist(), rollout.sampled[path].tolist()
        rows = zip(await self._positions(ids), ids, sampled)
        return [logprob_of(position, id) if chosen else 0.0 for position, id, chosen in rows]

    async def _positions(self, ids: list[int]) -> list[Any]:
        """What the endpoint says of each of these tokens, given those before it. Raises Failed."""
        body = {"model": self.config.path, "prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}

        async def send(client: Any) -> Any:
            return await client.post("/completions", body=body, cast_to=object)

        response = await self.endpoint.request(send)
        try:
            positions = response["choices"][0].get("prompt_logprobs")
        except (LookupError, TypeError, AttributeError):
            raise Failed("its response is no completion") from None
        if not isinstance(positions, list):
            raise Failed("it returns no prompt_logprobs: serve the teacher with vLLM, whose server does")
        if len(positions) != len(ids):
            raise Failed(f"it returns log-probabilities of {len(positions)} tokens for {len(ids)}")
        return positions

    async def _context(self) -> int | None:
        """How many tokens a request may have, the one that vLLM adds included; None if the endpoint does not say. Raises
        Failed, also for a model that it does not serve.
        """

        async def send(client: Any) -> Any:
            return await client.with_options(max_retries=0).get("/models", cast_to=object)

        response = await self.endpoint.request(send)
        try:
            limits = {card["id"]: card.get("max_model_len") for card in response["data"]}
        except (LookupError, TypeError, AttributeError):
            raise Failed("its list of models cannot be read") from None
        if self.config.path not in limits:
            raise Failed(f"it serves {', '.join(map(str, limits)) or 'no model'}: name one of them as teacher.path")
        limit = limits[self.config.path]
        return limit if isinstance(limit, int) else None


class Taught(Scorer):
    """A scorer whose rollouts also get log pi_T."""

    def __init__(self, scorer: Scorer, teacher: TeacherEndpoint) -> None:
        self.scorer, self.teacher = scorer, teacher

    def score(self, rollouts: list[Rollout], *others: Any) -> list[Rollout]:
        """The same rollouts, scored and read by the teacher. Raises TeacherFailed."""
        return self.teacher.read(self.scorer.score(rollouts, *others))

    def counts(self) -> dict[str, float]:
        """The scorer's."""
        return self.scorer.counts()


def probe(tokenizer: Any, count: int) -> list[int]:
    """At most `count` token ids: half of them the highest, where vocabularies of a family differ, and some of the others."""
    ids, half = sorted(tokenizer.get_vocab().values()), max(1, count // 2)
    high, others = ids[-half:], ids[:-half]
    return others[:: max(1, -(-len(others) // half))] + high


def logprob_of(position: Any, id: int) -> float:
    """The log-probability of a token in an endpoint's answer for its position. Raises Failed if there is none, or no finite
    one of at most 0.
    """
    try:
        value = float(position[str(id)]["logprob"])
    except (LookupError, TypeError, ValueError):
        raise Failed(f"it returns no log-probability of token {id}") from None
    if not NONE < value <= ROUNDING:  # also for NaN
        why = "no log-probability, which is finite and at most 0 (of vLLM with logprobs_mode = raw_logprobs)"
        raise Failed(f"it returns {value:g} for token {id}: {why}")
    return value


def paths(rollout: Rollout) -> list[list[int]]:
    """Indices of tokens, from a root to a sampled token, so that each sampled one is on a path and no path is part of
    another. A completion without branches has one.
    """
    parent = range(-1, len(rollout.tokens) - 1) if rollout.parent is None else rollout.parent.tolist()
    found, covered = [], set[int]()
    for leaf in reversed(rollout.sampled.nonzero()[:, 0].tolist()):  # descendants come after their ancestors
        if leaf not in covered:
            path = [leaf]
            while (before := parent[path[-1]]) >= 0:
                path.append(before)
            covered.update(path)
            found.append(path[::-1])
    return found
