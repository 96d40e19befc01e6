"""A reward model: a trained classifier that scores completions, in this process or behind a vLLM server."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Sequence
from typing import Any

from gspo.agents.trajectories import TrajectoryGroup
from gspo.config.checks import check_reward_model
from gspo.config.files import from_dict
from gspo.config.rewards import RewardModelConfig
from gspo.data.messages import text_of as words
from gspo.rewards.graders import Traits
from gspo.rewards.http_client import EndpointClient, Failed, api_key_of
from gspo.rewards.judge import NO_LIMIT
from gspo.rewards.transcripts import Messages, conversations, rewarded
from gspo.safe import without_logins

logger = logging.getLogger(__name__)


class RewardModel:
    """A reward function: a sequence classifier's score of prompt and completion.

    It runs in this process, beside the policy, and scores a whole rollout batch at once, or behind a server. It reads the
    prompt's messages and the completion, without thinking, rendered with its own chat template.
    """

    __name__ = "model"

    def __init__(self, config: RewardModelConfig | None = None, date: str | None = None, **fields: Any) -> None:
        """Takes the fields of [reward_model], as a RewardModelConfig or by name, and the day that its chat template may
        write (None: today). Raises ValueError if they are invalid.
        """
        self.config = config or from_dict({"reward_model": fields}).reward_model
        check_reward_model(self.config)
        self.scorer: Local | Served = Served(self.config) if self.config.url else Local(self.config, date)
        self.wait, self.counts, self.close = self.scorer.wait, self.scorer.counts, self.scorer.close
        self.traits = Traits(spoken=True, limit=NO_LIMIT, wait=self.wait, counts=self.counts, complete=True)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float | None]:
        """The score of each completion; None if it is too long, or the server returned none."""
        return self.scorer.scores([conversation_of(prompt, completion) for prompt, completion in zip(prompts, completions)])

    async def score_group(self, group: Any) -> TrajectoryGroup:
        """The group with rewards set, for `model.train`; each conversation is scored as a whole. A trajectory without a
        score is left out and counted as an exception.
        """
        values = await asyncio.to_thread(self.scorer.scores, conversations(group))
        finite = [value if value is not None and math.isfinite(value) else None for value in values]
        return rewarded(group, finite, "model")


class Local:
    """The classifier in this process, loaded on first use."""

    def __init__(self, config: RewardModelConfig, date: str | None) -> None:
        from gspo.rewards.classifier import Classifier  # imports torch

        self.classifier = Classifier(config, date)
        self.lock = threading.Lock()
        self.too_long, self.warned = 0, False

    def wait(self) -> None:
        """Loads the classifier."""
        with self.lock:
            self.classifier.load()

    def scores(self, conversations: Sequence[Messages]) -> list[float | None]:
        """The score of each conversation."""
        with self.lock:
            self.classifier.load()
            rows = [self.classifier.encode(messages) for messages in conversations]
            scores = iter(self.classifier.scores([row for row in rows if row is not None]))
            self.too_long += sum(row is None for row in rows)
            return [None if row is None else next(scores) for row in rows]

    def counts(self) -> dict[str, float]:
        """Completions that were too long since the last call (`too_long`). Warns the first time that there are some."""
        new, self.too_long = self.too_long, 0
        if new and not self.warned:
            self.warned = True
            logger.warning(
                f"reward model: {new} completions, with their prompts, are longer than {self.classifier.longest} tokens "
                'and get no score; reward_model.too_long = "left" or "right" scores what is left of them'
            )
        return {"too_long": float(new)}

    def close(self) -> None:
        """Releases its memory."""
        self.classifier.model = None


class Served:
    """The classifier behind `/classify` of a vLLM server, which applies its chat template. One request per completion."""

    def __init__(self, config: RewardModelConfig) -> None:
        key, url = api_key_of(config.key_variable, "reward_model.key_variable"), config.url or ""
        self.config = config
        self.endpoint = EndpointClient("reward model", url, key, config.timeout, config.retries, config.max_concurrent)
        self.counts, self.close = self.endpoint.counts, self.endpoint.close

    def wait(self) -> None:
        """Requests one score. Raises ValueError if that fails."""
        try:
            self.endpoint.run(self._score(conversation_of("1 + 1 = ?", "2"))).result()
        except Failed as error:
            url = without_logins(self.config.url or "")
            raise ValueError(f"reward_model.url = {url!r}, reward_model.path = {self.config.path!r}: {error}") from None
        self.endpoint.counts()

    def scores(self, conversations: Sequence[Messages]) -> list[float | None]:
        """The score of each conversation."""

        async def score_or_none(messages: Messages) -> float | None:
            try:
                return await self._score(messages)
            except Failed as error:
                self.endpoint.note(str(error))
                return None

        return [future.result() for future in [self.endpoint.run(score_or_none(messages)) for messages in conversations]]

    async def _score(self, messages: Messages) -> float:
        config = self.config
        body: dict[str, Any] = {
            "model": config.path, "messages": messages, "use_activation": config.output == "probability",
        }  # fmt: skip
        if config.max_length is not None and config.too_long != "none":
            body |= {"truncate_prompt_tokens": config.max_length, "truncation_side": config.too_long}

        async def send(client: Any) -> Any:
            return await client.post("/classify", body=body, cast_to=object)

        response = await self.endpoint.request(send)
        try:
            scores = [float(x) for x in response["data"][0]["probs"]]
            self.endpoint.total["tokens"] += int((response.get("usage") or {}).get("total_tokens") or 0)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Failed("its response is not that of vLLM's /classify") from None
        label = 0 if config.label is None else int(config.label)
        if label >= len(scores) or (config.label is None and len(scores) > 1):
            raise Failed(f"the classifier has {len(scores)} labels: give the number of one as reward_model.label")
        return scores[label]


def conversation_of(prompt: Any, completion: str) -> Messages:
    """Prompt and completion as a conversation; a final assistant message of the prompt is continued."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*prompt]
    if messages and messages[-1].get("role") == "assistant":
        return [*messages[:-1], {"role": "assistant", "content": words(messages[-1].get("content")) + completion}]
    return [*messages, {"role": "assistant", "content": completion}]
