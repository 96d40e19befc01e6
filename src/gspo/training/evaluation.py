"""Evaluations in a run: when, and on what."""

from __future__ import annotations

from gspo.rollout.evaluation import evaluate
from gspo.rollout.metrics import describe
from gspo.training.state import Run
from gspo.types import Metrics

SHOWN = 32  # held-out prompts of which each evaluation keeps a completion


def evaluates(run: Run) -> bool:
    """Whether this step (0: before the first) ends with an evaluation."""
    every = run.config.eval.every
    return every > 0 and (run.step % every == 0 or run.step == run.config.train.steps)


def held_out(run: Run) -> Metrics:
    """Accuracy on the held-out prompts. Every evaluation draws with the same seed, so that differences are paired."""
    metrics, groups = evaluate(
        run.evaluator,
        run.scorer,
        run.held_out,
        run.config.eval.num_generations,
        run.eval_sampling,
        run.config.reward.correct_at,
        run.screen.phase,
    )
    shown = [{"step": run.step} | describe(group.rollouts[0]) for group in groups[:SHOWN]]
    run.log.evaluations(shown if run.config.log.rollouts else [])
    return metrics
