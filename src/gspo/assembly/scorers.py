"""The scorer of a run, from its configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from gspo.assembly.call_inputs import CallInputs
from gspo.config.conflicts import ONE_REWARD
from gspo.config.import_function import load_function
from gspo.config.rollout import TaskConfig
from gspo.config.schema import Config
from gspo.config.source_kind import in_environment
from gspo.rewards.judge import Judge
from gspo.rewards.reward_model import RewardModel
from gspo.rewards.scorer import Rewards
from gspo.rollout.external import AlreadyScored, Unrewarded


@contextmanager
def scorer_of(config: Config, given: CallInputs) -> Iterator[Rewards | AlreadyScored]:
    """Yields the rewards, a scorer that gives 0 if only a teacher teaches, or a no-op if an environment scores."""
    if in_environment(config.task):
        _check_environment(config.task, given)
        yield AlreadyScored()
        return
    if not config.reward.functions and not given.functions:
        yield Unrewarded()
        return
    with ExitStack() as stack:
        named_rewards: dict[str, Any] = {}
        if "judge" in config.reward.functions:
            named_rewards["judge"] = stack.enter_context(closing(Judge(config.judge)))
        if "model" in config.reward.functions:
            named_rewards["model"] = stack.enter_context(closing(RewardModel(config.reward_model, config.task.date)))
        yield stack.enter_context(Rewards(config.reward, config.task, given.functions, named_rewards, config.code))


def check_scale(config: Config, scorer: Rewards | AlreadyScored) -> None:
    """Raises ValueError if rewards are to be scaled apart, and fewer than two have a weight."""
    weights = list(scorer.weights.values()) if isinstance(scorer, Rewards) else []
    if config.algorithm.scale_rewards == "gdpo" and sum(map(bool, weights)) < 2:
        raise ValueError(f"algorithm.scale_rewards = 'gdpo' and reward.weights = {weights}: {ONE_REWARD}")


def _check_environment(task: TaskConfig, given: CallInputs) -> None:
    """Raises ValueError for an invalid environment, before a model is loaded."""
    if given.functions:
        raise ValueError("reward: has no effect, the environment gives the reward itself; leave it out")
    if task.environment is not None:
        load_function(task.environment, "task.environment")
        return
    if given.rows is not None or given.eval_rows is not None:
        raise ValueError(f"task.source = {task.source!r} has tasks of its own: leave dataset and eval_dataset out")
    from gspo.agents.verifiers_episodes import check

    check(task)
