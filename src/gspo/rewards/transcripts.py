"""Conversations as text for judges and reward models, and trajectories with the resulting rewards."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from gspo.agents.trajectories import TrajectoryGroup, plain
from gspo.config.answer_format import after_thinking

Messages = list[dict[str, Any]]


class NoOpinion(Exception):
    """Takes the place of a trajectory without a reward in its group."""


def text_of(messages: str | Sequence[dict[str, Any]]) -> str:
    """A prompt as text: itself, the text of a lone user message, or each message under its role."""
    if isinstance(messages, str):
        return messages
    if len(messages) == 1 and messages[0].get("role") == "user":
        return words_of(messages[0])
    return "\n\n".join(f"[{message.get('role', '')}]\n{words_of(message)}" for message in messages)


def words_of(message: dict[str, Any]) -> str:
    """The text of a message, and its tool calls as JSON."""
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    call_texts = [json.dumps(call, ensure_ascii=False, default=str) for call in calls]
    return "\n".join([content] * bool(content) + call_texts)


def conversations(group: Any) -> list[Messages]:
    """The messages of each trajectory, without thinking; those of additional histories follow the main one's."""
    transcripts = []
    for trajectory in group:
        histories = (trajectory, *(getattr(trajectory, "additional_histories", None) or ()))
        transcripts.append([_spoken(plain(item)) for history in histories for item in history.messages_and_choices])
    return transcripts


def _spoken(message: dict[str, Any]) -> dict[str, Any]:
    """The message, if it is the model's without its thinking."""
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    return {**message, "content": after_thinking(content)}


def common_start(transcripts: Sequence[Messages]) -> int:
    """Length of the message prefix shared by all conversations; leaves at least one message to each."""
    most = min((len(messages) for messages in transcripts), default=1) - 1
    return next((i for i in range(most) if any(messages[i] != transcripts[0][i] for messages in transcripts)), max(most, 0))


def rewarded(group: Any, values: Sequence[float | None], name: str = "preference") -> TrajectoryGroup:
    """The group with these rewards, in copies of its trajectories, which have them also as the metric `name`.

    An exception takes the place of a trajectory without a reward. Raises ValueError for another number of rewards.
    """
    trajectories = list(group)
    if len(values) != len(trajectories):
        raise ValueError(f"{len(values)} rewards for {len(trajectories)} trajectories: give one for each, or None")
    results: list[Any] = []
    for trajectory, value in zip(trajectories, values):
        if value is None:
            results.append(NoOpinion(f"{name} did not score it"))
            continue
        copied = copy.copy(trajectory)
        copied.reward, copied.metrics = float(value), {**trajectory.metrics, name: float(value)}
        results.append(copied)
    return TrajectoryGroup([*results, *getattr(group, "exceptions", ())], getattr(group, "metadata", None))
