"""A judge: a language model that scores completions by a rubric, or compares them with each other."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from gspo.agents.trajectories import TrajectoryGroup
from gspo.config.checks import check_judge
from gspo.config.files import from_dict
from gspo.config.rewards import JudgeConfig
from gspo.data.columns import value_in
from gspo.rewards import judge_prompts
from gspo.rewards.graders import Traits
from gspo.rewards.http_client import EndpointClient, Failed, Unreadable, api_key_of
from gspo.rewards.judge_cache import Cache, key_of
from gspo.rewards.judge_prompts import Question
from gspo.rewards.preferences import from_ranks, rewards
from gspo.rewards.transcripts import common_start, conversations, rewarded, text_of
from gspo.safe import without_logins

ALONE = "a group of one has nothing to be compared with"
NO_LIMIT = 1e8  # seconds (three years): each request has its own timeout


class Judge:
    """A reward function that asks a model at an OpenAI-compatible endpoint to judge completions by a rubric.

    In mode "score" each completion is judged on its own; in the other modes ("group", "rank", "pairs") each call gets all
    completions of one prompt. A completion without a readable response gets None, never a number. Equal completions of a
    prompt get equal rewards. The API key comes from an environment variable.
    """

    __name__ = "judge"

    def __init__(self, config: JudgeConfig | None = None, **fields: Any) -> None:
        """Takes the fields of [judge], as a JudgeConfig or by name. Raises ValueError if one is missing or out of range."""
        config = config or from_dict({"judge": fields}).judge
        self.config = config
        check_judge(config)
        key = api_key_of(config.key_variable, "judge.key_variable")
        needs = {config.reference_column: "judge.reference_column"} if config.reference_column else {}
        self.traits = Traits(config.mode != "score", True, NO_LIMIT, needs, self.wait, self.counts, complete=True)
        self.cache = Cache(config.cache, "judge.cache")
        self.endpoint = EndpointClient("judge", config.url, key, config.timeout, config.retries, config.max_concurrent)
        self._pending: dict[str, asyncio.Task[Any]] = {}

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float | None]:
        """A reward or None for each completion; by group, the completions are those of one prompt."""
        rows = [{name: values[i] for name, values in columns.items()} for i in range(len(completions))]
        cells = [value_in(row, self.config.reference_column or "") for row in rows]
        references = [None if reference is None else str(reference) for reference in cells]
        return await self._judged([text_of(prompt) for prompt in prompts], list(completions), references)

    async def score_group(self, group: Any, reference: str | None = None) -> TrajectoryGroup:
        """The group with rewards set, for `model.train`. The common prefix of all trajectories is the question, the rest of
        each its completion. A trajectory that it does not score is left out and counted as an exception.
        """
        transcripts = conversations(group)
        start = common_start(transcripts)
        question = text_of(transcripts[0][:start]) if transcripts else ""
        completions = [text_of(messages[start:]) for messages in transcripts]
        count = len(completions)
        return rewarded(group, await self._judged([question] * count, completions, [reference] * count), "judge")

    def wait(self) -> None:
        """Sends one small question. Raises ValueError if the endpoint refuses it or cannot be reached."""
        try:
            self.endpoint.run(self._complete(judge_prompts.scored(self.config, "1 + 1 = ?", "2", None))).result()
        except Failed as error:
            url = without_logins(self.config.url)
            raise ValueError(f"judge.url = {url!r}, judge.model = {self.config.model!r}: {error}") from None
        except Unreadable:
            pass  # the next response may be readable; unreadable ones are counted
        self.endpoint.counts()  # excludes this request from the counts

    def counts(self) -> dict[str, float]:
        """Counts since the last call: requests, cache hits, retries, unanswered questions (failed), tokens read and
        written, and seconds of waiting, summed over requests. Warns of new reasons for a missing answer.
        """
        return self.endpoint.counts()

    def close(self) -> None:
        """Closes its connections and the cache."""
        self.endpoint.close()
        self.cache.close()

    async def _judged(self, prompts: list[str], completions: list[str], references: list[str | None]) -> list[float | None]:
        if self.traits.by_group and completions:
            work = self._group(prompts[0], completions, references[0])
        else:
            work = self._each(map(partial(judge_prompts.scored, self.config), prompts, completions, references))
        return await asyncio.wrap_future(self.endpoint.run(work))

    # The methods below run in the client's own event loop.

    async def _each(self, questions: Iterable[Question]) -> list[Any]:
        return await asyncio.gather(*map(self._ask, questions))

    async def _group(self, prompt: str, completions: list[str], reference: str | None) -> list[float | None]:
        config = self.config
        if len(completions) < 2:
            self.endpoint.note(ALONE)
            return [None] * len(completions)
        distinct = sorted(set(completions))
        random.Random(key_of([config.seed, prompt, distinct])).shuffle(distinct)
        if config.mode == "pairs":
            values = await self._pairs(prompt, distinct, reference)
        else:
            question = judge_prompts.ranked if config.mode == "rank" else judge_prompts.together
            values = await self._ask(question(config, prompt, distinct, reference))
        each = [values[distinct.index(completion)] if values else None for completion in completions]
        return from_ranks(each) if config.mode == "rank" else each  # duplicates take a place, too

    async def _pairs(self, prompt: str, completions: list[str], reference: str | None) -> list[float | None]:
        """Bradley-Terry strengths; each pair is judged in both orders, which count as one comparison."""
        if len(completions) == 1:
            return [0.0]

        async def compare(i: int, j: int) -> tuple[int, int, float] | None:
            orders = ((completions[i], completions[j]), (completions[j], completions[i]))
            questions = (judge_prompts.paired(self.config, prompt, *order, reference) for order in orders)
            first, second = await self._each(questions)
            opinions = [x for x in (first, None if second is None else 1 - second) if x is not None]
            return (i, j, sum(opinions) / len(opinions)) if opinions else None

        outcomes = await asyncio.gather(*(compare(i, j) for i, j in combinations(range(len(completions)), 2)))
        return rewards(len(completions), [one for one in outcomes if one is not None])

    async def _ask(self, question: Question) -> Any:
        """The judge's verdict, or None, which is counted. A question in flight is not sent twice."""
        config = self.config
        key = key_of([self.endpoint.url, config.model, config.request, question.messages("")])
        cached = self.cache.get(key)
        task = self._pending.get(key)
        self.endpoint.total["cached"] += cached is not None or task is not None
        if cached is not None:
            return question.read(judge_prompts.object_of(cached))
        if task is None:
            task = self._pending[key] = asyncio.ensure_future(self._attempts(question, key))
            task.add_done_callback(lambda _: self._pending.pop(key))
        verdict, reason = await asyncio.shield(task)
        if reason:
            self.endpoint.note(reason)
        return verdict

    async def _attempts(self, question: Question, key: str) -> tuple[Any, str]:
        """The judge's verdict, or the reason for none."""
        reason = ""
        for attempt in range(self.config.retries + 1):
            self.endpoint.total["retries"] += attempt > 0
            try:
                text = await self._complete(question)
                verdict = question.read(judge_prompts.object_of(text))
            except Failed as error:  # already retried by the client
                return None, str(error)
            except Unreadable as error:
                reason = f"unreadable response: {error}"
            else:
                self.cache.put(key, text)
                return verdict, ""
        return None, reason

    async def _complete(self, question: Question) -> str:
        """The text of one response. Raises Failed or Unreadable."""
        config = self.config
        messages: Any = question.messages(secrets.token_hex(8))

        async def send(client: Any) -> Any:
            raw = client.chat.completions.with_raw_response
            return await raw.create(model=config.model, messages=messages, extra_body=config.request)

        response = await self.endpoint.request(send)
        self.endpoint.total["retries"] += response.retries_taken
        try:
            body = json.loads(response.text)
            choice = body["choices"][0]
            text = choice["message"]["content"]
            self.endpoint.total["tokens"] += int((body.get("usage") or {}).get("total_tokens") or 0)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise Unreadable("no chat completion") from None
        if choice.get("finish_reason") == "length":
            raise Unreadable("cut off at the judge's own limit")
        if not isinstance(text, str):
            raise Unreadable("no text")
        return text
