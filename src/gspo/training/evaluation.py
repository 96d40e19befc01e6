"""Evaluation during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gspo.data.reward_bounds import NO_OPINION
from gspo.interfaces import RewardsFailed
from gspo.rollout.evaluation import evaluate
from gspo.rollout.failures import all_failed, cause, eval_errors
from gspo.rollout.metrics import describe
from gspo.training.state import Run
from gspo.types import Metrics

SHOWN = 32  # held-out prompts per evaluation for which one completion is logged


def evaluates(run: Run) -> bool:
    """Whether this step (0: before the first) ends with an evaluation."""
    every = run.config.eval.every
    return every > 0 and (run.step % every == 0 or run.step == run.config.train.steps)


def rank(rewards: Sequence[float | None]) -> float:
    """What evaluations are ranked by: the mean reward. A completion that was not scored counts as 0, or as the worst if that
    is lower, lest failed graders make an evaluation the best. NaN if none was scored.
    """
    known = [reward for reward in rewards if reward is not None]
    return (sum(known) + (len(rewards) - len(known)) * min(0.0, *known)) / len(rewards) if known else math.nan


def held_out(run: Run) -> Metrics:
    """Accuracy on the held-out prompts. All evaluations sample with the same seed, so that differences between them are
    paired. Raises RewardsFailed if no completion could be scored before the first step.
    """
    run.scorer.at(run.step, run.config.train.steps)
    reward = run.config.reward
    metrics, groups = evaluate(
        run.evaluator, run.scorer, run.held_out, run.config.eval.num_generations, run.eval_sampling,
        reward.correct_threshold, run.screen.phase,
    )  # fmt: skip
    shown = [{"step": run.step} | describe(group.rollouts[0], reward.answer_column) for group in groups[:SHOWN]]
    run.log.evaluations(shown if run.config.log.rollouts else [])
    why = all_failed(groups)
    if why and not run.step and NO_OPINION not in why:
        raise RewardsFailed(f"the evaluation before step 1: {why}")
    if metrics["eval/failed"]:
        errors = eval_errors(groups)
        run.log.warn(
            f"step {run.step}: {metrics['eval/failed']:.0f} of {len(errors)} held-out completions were not scored, and "
            f"count as wrong in eval/accuracy and not in eval/reward; {cause(errors)}"
        )
    mean = rank([rollout.reward for group in groups for rollout in group.rollouts])
    if mean > (-math.inf if run.best is None else run.best):
        run.best, run.best_step = mean, run.step
    return metrics
