"""Settings that change during a run: sampling stages, and the refresh of the queries."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from gspo.config.field import COOLEST, opt
from gspo.config.rollout import RolloutConfig


@dataclass(frozen=True)
class StageConfig:
    """One `[[stage]]` table. What a stage sets holds until a later stage sets it again."""

    at: int = opt(0, low=2, high=10**9)
    """First step that is trained with the settings of this stage. Required. Until the first stage, [rollout] and [task]
    apply. Rollouts sampled ahead for earlier steps (`rollout.max_staleness`) finish with the settings that
    they began with."""
    max_completion_length: int | None = opt(None, low=1, high=10**7)
    """Longest completion, in tokens, in place of `rollout.max_completion_length`."""
    temperature: float | None = opt(None, low=COOLEST, high=100)
    """Sampling temperature, in place of `rollout.temperature`."""
    num_generations: int | None = opt(None, low=2, high=10_000)
    """Completions per prompt (G), in place of `rollout.num_generations`."""
    source: str | None = opt(None, path=True)
    """Source of the prompts, in place of `task.source`. It is read with the settings of [task], except `task.config`."""


@dataclass(frozen=True)
class RefreshConfig:
    """Periodic refresh of the training queries: drop those that are too easy or too hard by now, or load a new set."""

    every: int = opt(0, low=0, high=10**9)
    """Steps between refreshes. 0: none."""
    drop_above: float = opt(1.0, low=1e-6, high=1)
    """Drop a query if more than this share of its completions is correct (`reward.correct_threshold`). 1: drop none."""
    drop_below: float = opt(0.0, low=0, high=1)
    """Drop a query if less than this share of its completions is correct. 0: drop none."""
    min_seen: int = opt(1, low=1, high=10**6)
    """Minimum number of groups of a query, scored since it was last judged, before it is judged."""
    return_after: int = opt(0, low=0, high=10**9)
    """Number of steps after which a dropped query returns, at the next refresh. 0: never."""
    keep: int | None = opt(None, low=1, high=10**8)
    """Minimum number of queries that stay. If more would be dropped, those nearest to the limits stay. Unset: the number of
    prompts per step (`rollout.num_prompts`)."""
    source: str | None = opt(None)
    """`module:function` that returns a new set of queries at each refresh, instead of dropping any. It is called with
    `step`, the number of steps done, and returns rows as a `task.source` does."""

    @property
    def drops(self) -> bool:
        """Whether a refresh may drop queries."""
        return self.drop_above < 1 or self.drop_below > 0


Stages = Sequence[StageConfig]
SETS = ("max_completion_length", "temperature", "num_generations")
"""Fields of [rollout] that a stage can set."""


def rollout_at(rollout: RolloutConfig, stages: Stages, step: int) -> RolloutConfig:
    """Returns [rollout] with the settings that apply to the batch of a step."""
    for stage in stages[: number_at(stages, step)]:
        given = {name: value for name in SETS if (value := getattr(stage, name)) is not None}
        rollout = dataclasses.replace(rollout, **given)
    return rollout


def number_at(stages: Stages, step: int) -> int:
    """Number of stages that have begun by the batch of a step; 0 before the first."""
    return sum(stage.at <= step for stage in stages)


def source_at(stages: Stages, step: int) -> int:
    """First step of the stage whose source provides the prompts of a step; 0 for `task.source`."""
    return max((stage.at for stage in stages if stage.at <= step and stage.source is not None), default=0)


def longest(rollout: RolloutConfig, stages: Stages) -> tuple[str, int]:
    """The key that allows the longest completion of a run, and that limit in tokens."""
    found = "rollout.max_completion_length", rollout.max_completion_length
    for number, stage in enumerate(stages):
        if (stage.max_completion_length or 0) > found[1]:
            found = f"stage[{number}].max_completion_length", stage.max_completion_length or 0
    return found
