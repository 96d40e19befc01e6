"""The prompts of a run across its stages and refreshes (data/refresh.py describes the design)."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gspo.config.rollout import RolloutConfig
from gspo.config.stages import RefreshConfig, StageConfig, number_at, rollout_at, source_at
from gspo.data.prompts import identity
from gspo.data.refresh import Pool
from gspo.rollout.failures import first
from gspo.types import Group, Metrics, Prompt, Sampling

logger = logging.getLogger(__name__)

CHANGES = "queries/dropped", "queries/returned", "queries/new"
TASK = "train"
"""Name of the pool of task.source."""


def stage_name(at: int) -> str:
    """Name of the pool of a stage with its own source, from the first step of the stage; 0: task.source."""
    return f"stage{at}" if at else TASK


def sampling_at(sampling: Sampling, rollout: RolloutConfig) -> Sampling:
    """The sampling settings with a step's [rollout] applied."""
    return dataclasses.replace(sampling, max_new_tokens=rollout.max_completion_length, temperature=rollout.temperature)


class Curriculum:
    """Selects the prompts of a run, step by step.

    make: requests a new set from refresh.source, by its name and the number of finished steps; may raise RefreshFailed.
    rebuild: recreates such a set from its saved rows.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        rollout: RolloutConfig | None = None,
        stages: Sequence[StageConfig] = (),
        refresh: RefreshConfig | None = None,
        correct_threshold: float = 1.0,
        make: Callable[[str, int], Pool] | None = None,
        rebuild: Callable[[str, list[dict[str, Any]]], Pool] | None = None,
    ) -> None:
        self.pools = {pool.name: pool for pool in pools}  # of the task and of stages, and what refresh.source returned
        self.rollout, self.stages, self.refreshing = rollout or RolloutConfig(), stages, refresh or RefreshConfig()
        self.correct_threshold, self.make, self.rebuild = correct_threshold, make, rebuild
        self.position, self.begun = 0, -1  # prompts handed out; steps finished when the last batch started
        self.made: list[tuple[str, int]] = []  # pools from refresh.source, and the step after which each was created
        self.changes: dict[int, dict[str, float]] = {}  # of the queries, by the first step that trains on them

    def pool_at(self, step: int) -> Pool:
        """The pool of a step's batch, if the batch started now."""
        return self.pools[self.made[-1][0] if self.made else stage_name(source_at(self.stages, step))]

    def begin(self, done: int) -> None:
        """Announces that a batch starts after `done` steps, and performs a refresh if it is due. Raises RefreshFailed."""
        if done <= self.begun:  # the sampler was lost during this batch, which starts again
            return
        every, self.changes = self.refreshing.every, {step: each for step, each in self.changes.items() if step > done}
        began = next((stage for stage in self.stages if stage.at == done + 1 and stage.source is not None), None)
        if began is not None:
            self._change(done + 1)["queries/new"] = self._new(self.pools[stage_name(began.at)])
        if every and done and done % every == 0:
            if self.make is not None:
                self._replace(self.make(f"refresh{done}", done), done)
            else:
                self._drop(done)
        self.begun = done

    def _change(self, step: int) -> dict[str, float]:
        return self.changes.setdefault(step, dict.fromkeys(CHANGES, 0.0))

    def _replace(self, pool: Pool, done: int) -> None:
        self._change(done + 1 + self.rollout.max_staleness)["queries/new"] = self._new(pool)
        self.pools[pool.name] = pool
        self.made.append((pool.name, done))
        ahead = self.rollout.max_staleness
        while len(self.made) > 1 and self.made[1][1] + ahead <= done:  # none of its prompts are in progress
            del self.pools[self.made.pop(0)[0]]

    def _drop(self, done: int) -> None:
        counts = self._change(done + 1 + self.rollout.max_staleness)  # groups of the old queries are in progress
        for pool in self.pools.values():
            keep = min(self.refreshing.keep or self.rollout.num_prompts, len(pool.queries))
            change = pool.refresh(done, self.refreshing, keep)
            counts["queries/dropped"] += change.dropped
            counts["queries/returned"] += change.returned
            if change.spared:
                logger.warning(
                    f"step {done + 1}: refresh.keep lets {keep} queries stay: {change.spared} that lie beyond "
                    "refresh.drop_above or refresh.drop_below are trained on all the same, those nearest to them. The rest "
                    "is too easy or too hard: widen the limits, or give more queries"
                )

    def _new(self, pool: Pool) -> int:
        """Number of queries of a pool that are in no other used pool."""
        others = [other for other in self.pools.values() if other is not pool and other.cursor]
        known = {identity(prompt, True) for other in others for prompt in other.prompts}
        return len({identity(prompt, True) for prompt in pool.prompts} - known)

    def take(self, k: int, step: int) -> list[Prompt]:
        """The next k prompts for the batch of a step."""
        self.position += k
        return self.pool_at(step).take(k)

    def observe(self, groups: Sequence[Group]) -> None:
        """Receives all groups that were sampled and scored, and counts them for the next refresh."""
        for group in groups if self.stages or self.refreshing.every else ():
            values = [value for value in map(first, group.rollouts) if value is not None]
            pool = next((pool for pool in self.pools.values() if group.prompt.id in pool.number), None)
            if pool is not None:
                pool.observe(group.prompt, len(values), sum(value >= self.correct_threshold - 1e-9 for value in values))

    def forget(self, good: Mapping[str, Any]) -> None:
        """Takes back how queries were answered, and which were dropped for it, since the state `good`: by weights that are
        gone.
        """
        coming = [each for step, each in self.changes.items() if step > self.begun + 1]  # what is in progress is dropped
        for pool in self.pools.values():
            change = pool.forget(next((saved for saved in good["pools"] if saved["name"] == pool.name), None))
            coming.append({"queries/dropped": change.dropped, "queries/returned": change.returned})
        self.changes = {self.begun + 2: {name: sum(each.get(name, 0) for each in coming) for name in CHANGES}}

    def find(self, id: str) -> Prompt:
        """The prompt with this id."""
        return next(pool.prompts[pool.number[id]] for pool in self.pools.values() if id in pool.number)

    def metrics(self, step: int) -> Metrics:
        """Metrics of a step, if stages or refreshes are configured."""
        if not self.stages and not self.refreshing.every:
            return {}
        rollout = rollout_at(self.rollout, self.stages, step)
        stage = {
            "stage": number_at(self.stages, step),
            "stage/max_completion_length": rollout.max_completion_length,
            "stage/temperature": rollout.temperature,
            "stage/num_generations": rollout.num_generations,
        }
        return stage | self.pool_at(step).counts() | self.changes.get(step, dict.fromkeys(CHANGES, 0.0))

    @property
    def place(self) -> tuple[int, dict[str, int]]:
        """Current position; assign a saved one to take the same prompts again."""
        return self.position, {name: pool.cursor for name, pool in self.pools.items()}

    @place.setter
    def place(self, value: tuple[int, dict[str, int]]) -> None:
        """Goes back to a saved position."""
        self.position = value[0]
        for name, cursor in value[1].items():
            self.pools[name].cursor = cursor

    def state_dict(self) -> dict[str, Any]:
        """All state that the next prompt and the next refresh depend on, in plain types."""
        used = [pool.state_dict() for pool in self.pools.values() if pool.cursor or pool.rows]
        made = [[name, step] for name, step in self.made]
        changes = {step: dict(each) for step, each in self.changes.items()}
        return {"position": self.position, "begun": self.begun, "changes": changes, "pools": used, "made": made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`. Raises ValueError if prompts that were trained on no longer exist."""
        self.position, self.begun = state["position"], state["begun"]
        self.changes = {step: dict(each) for step, each in state["changes"].items()}
        self.made = [(name, step) for name, step in state["made"]]
        for saved in state["pools"]:
            rows = json.loads(saved["rows"])
            if rows and self.rebuild is not None:
                self.pools[saved["name"]] = self.rebuild(saved["name"], rows)
            self.pools[saved["name"]].load_state_dict(saved)
