"""What an agent returns: conversations with their rewards, in groups with the same start."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gspo.config.values import type_of


@dataclass
class History:
    """A conversation besides the main one, such as a sub-agent's."""

    messages_and_choices: list[Any]
    tools: list[dict[str, Any]] | None = None


@dataclass
class Trajectory:
    """One run of an agent, with its reward.

    Attributes:
        messages_and_choices: The conversation in order: messages (dicts), and choices of the endpoint's responses as the
            client returned them.
        reward: Reward of the whole run.
        turn_rewards: Additional reward of each turn of the policy.
        additional_histories: Further conversations that the same reward is for.
        metrics: Numbers to average and log.
        metadata: What distinguishes the run from others.
    """

    messages_and_choices: list[Any] = field(default_factory=list)
    reward: float = 0.0
    turn_rewards: list[float] | None = None
    additional_histories: list[Any] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as plain messages, for the next request."""
        return [plain(item) for item in self.messages_and_choices]


class TrajectoryGroup:
    """Trajectories with the same start, whose rewards are compared with each other. At least two are needed.

    `trajectories` may contain exceptions, as returned by asyncio.gather(return_exceptions=True). They are counted.
    """

    def __init__(self, trajectories: Iterable[Any], metadata: dict[str, Any] | None = None) -> None:
        results = list(trajectories)
        if any(inspect.isawaitable(result) for result in results):
            raise ValueError("a group takes trajectories, not what is still to be awaited: see gspo.gather")
        self.trajectories = [result for result in results if not isinstance(result, BaseException)]
        self.exceptions = [result for result in results if isinstance(result, BaseException)]
        self.metadata = metadata or {}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)


def groups_of(given: Any) -> list[TrajectoryGroup]:
    """The trajectories given for training, as groups. Raises ValueError for anything else, with its value and position."""
    if hasattr(given, "trajectories"):
        raise _no_group("groups", given)
    return [_group_of(group, f"groups[{number}]") for number, group in enumerate(_listed("groups", given))]


def trajectories_of(given: Any) -> list[Any]:
    """The trajectories of groups, or of one group, without exceptions. Raises ValueError for anything else."""
    items = _listed("groups", given)
    groups = groups_of([[item] if hasattr(item, "reward") or isinstance(item, Exception) else item for item in items])
    return [trajectory for group in groups for trajectory in group]


def _group_of(given: Any, name: str) -> TrajectoryGroup:
    group = TrajectoryGroup(_listed(name, getattr(given, "trajectories", given)), getattr(given, "metadata", None))
    group.exceptions += getattr(given, "exceptions", ())
    for number, trajectory in enumerate(group):
        _check(trajectory, f"{name}[{number}]")
    return group


def _listed(name: str, value: Any) -> Iterable[Any]:
    """The value if it is a collection. A trajectory of ART is not, although iterating over it gives its fields."""
    if not isinstance(value, Iterable) or isinstance(value, (str, dict)) or hasattr(value, "reward"):
        raise _no_group(name, value)
    return value


def _no_group(name: str, value: Any) -> ValueError:
    return ValueError(
        f"{name} = {value!r:.80}, {type_of(value)}: groups of trajectories are expected, such as "
        "[gspo.TrajectoryGroup([a, b]), ...] or [[a, b], ...]"
    )


def _check(trajectory: Any, name: str) -> None:
    if not hasattr(trajectory, "messages_and_choices") or not hasattr(trajectory, "reward"):
        raise ValueError(
            f"{name} = {trajectory!r:.80}, {type_of(trajectory)}: a trajectory is expected, such as "
            "gspo.Trajectory(messages, reward=1.0)"
        )
    numbers = {"reward": trajectory.reward, **trajectory.metrics}
    numbers |= {f"turn_rewards[{i}]": value for i, value in enumerate(getattr(trajectory, "turn_rewards", None) or ())}
    for key, value in numbers.items():
        try:
            float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{name}: {key} = {value!r:.80}, {type_of(value)}: a number is expected") from None


@dataclass(frozen=True)
class TrainCall:
    """Settings for one call of a served model's `train`; None: as in the run.

    Attributes:
        learning_rate: Learning rate of this call's updates.
        importance_sampling_level: The unit with its own ratio and clip: "sequence" (GSPO), "turn" or "token" (GRPO). It must
            be the run's own, since a clip range fits one level only.
    """

    learning_rate: float | None = None
    importance_sampling_level: str | None = None

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if rate is not None and not (isinstance(rate, (int, float)) and 0 < rate <= 1):
            raise ValueError(f"learning_rate = {rate!r}: must be a number above 0 and at most 1")


def plain(item: Any) -> dict[str, Any]:
    """The message as a dict, from a dict, a choice, a response, or a message object of a client library."""
    choice = _choice_of(item)
    message = choice.get("message", choice) if isinstance(choice, dict) else getattr(choice, "message", choice)
    if hasattr(message, "model_dump"):
        message = message.model_dump(exclude_none=True)
    if not isinstance(message, dict):
        raise ValueError(f"a trajectory holds {type_of(message)}: messages (dicts) and choices of responses are expected")
    return message


def id_of(item: Any) -> str | None:
    """The id of the call that produced a turn: a choice, a response or its message; None without one."""
    choice = _choice_of(item)
    id = choice.get("id") if isinstance(choice, dict) else getattr(choice, "id", None)
    return id if isinstance(id, str) else None


def _choice_of(item: Any) -> Any:
    if isinstance(item, dict):
        return item["choices"][0] if item.get("choices") else item
    return item.choices[0] if hasattr(item, "choices") else item
