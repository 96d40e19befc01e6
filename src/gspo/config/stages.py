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
    apply. Rollouts sampled ahead for earlier steps (`rollout.delay`, `rollout.max_staleness`) finish with the settings that
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
    """Drop a query if more than this share of its completions is correct (`reward.correct_at`). 1: drop none."""
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


def check_stages(stages: Stages, steps: int) -> None:
    """Checks that stages are in order, lie within the run's steps, and set something. Raises ValueError."""
    before = 0
    for number, stage in enumerate(stages):
        key = f"stage[{number}]"
        if not stage.at:
            raise ValueError(f"{key}.at is required: set it to the first step of the stage")
        if stage.at == before:
            raise ValueError(f"{key}.at = {stage.at}: is also where stage[{number - 1}] begins: make one stage of them")
        if stage.at < before:
            raise ValueError(f"{key}.at = {stage.at}: stage[{number - 1}].at = {before} is later: put stages in order")
        if stage.at > steps:
            raise ValueError(f"{key}.at = {stage.at}: the run ends with train.steps = {steps}: leave it out, or raise steps")
        names = [field.name for field in dataclasses.fields(stage) if field.name != "at"]
        if all(getattr(stage, name) is None for name in names):
            raise ValueError(f"{key}: sets nothing at step {stage.at}: set one of {', '.join(names)}, or leave it out")
        if stage.source is not None and not stage.source.strip():
            raise ValueError(f"{key}.source = {stage.source!r}: name a source of prompts, or leave it out")
        before = stage.at


def check_refresh(refresh: RefreshConfig, stages: Stages) -> None:
    """Checks that the settings of a refresh fit together. Raises ValueError."""
    above, below = refresh.drop_above, refresh.drop_below
    if below >= above:
        raise ValueError(
            f"refresh.drop_below = {below:g} and refresh.drop_above = {above:g}: no share lies between them, so every query "
            "would be dropped: set drop_below to less than drop_above"
        )
    if refresh.every and not refresh.drops and refresh.source is None:
        raise ValueError(
            f"refresh.every = {refresh.every}: drops nothing with refresh.drop_above = 1 and refresh.drop_below = 0: set "
            "one of them, or refresh.source"
        )
    for number, stage in enumerate(stages):
        if refresh.source is not None and stage.source is not None:
            raise ValueError(
                f"refresh.source = {refresh.source!r} and stage[{number}].source = {stage.source!r}: each would replace the "
                "other's queries: leave one of them out"
            )
