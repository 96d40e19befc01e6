"""Held-out accuracy with a 95 % interval."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gspo.ports import Report, Sampler, Scorer
from gspo.rollout.metrics import batch_metrics
from gspo.rollout.statistics import accuracy_interval
from gspo.rollout.synchronous import sample_groups
from gspo.types import Group, Prompt, Rollout, Sampling


def evaluate(
    sampler: Sampler,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    n: int,
    sampling: Sampling,
    correct_at: float,
    report: Report = lambda phase, done, total: None,
) -> tuple[dict[str, float], list[Group]]:
    """n completions to each prompt. `eval/accuracy` is the mean share of completions to which the first reward function
    gives at least `correct_at`.

    A completion that it could not score is left out; `eval/failed` counts those without any reward.
    """
    begin = time.perf_counter()
    groups, _ = sample_groups(sampler, scorer, prompts, n, sampling, lambda *args: report("evaluating", *args[1:]))
    shares = []
    for group in groups:
        values = [first(r) for r in group.rollouts]
        correct = [value >= correct_at - 1e-9 for value in values if value is not None]
        if correct:
            shares.append(sum(correct) / len(correct))
    accuracy, low, high = accuracy_interval(shares)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    means = batch_metrics(rollouts)
    means.pop("tokens")
    metrics = {"accuracy": accuracy, "accuracy_low": low, "accuracy_high": high} | means
    metrics["failed"] = float(sum(r.reward is None for r in rollouts))
    metrics["prompts"] = float(len(prompts))
    named = {f"eval/{name.removeprefix('completions/')}": value for name, value in metrics.items()}
    return named | {"time/eval": time.perf_counter() - begin}, groups


def first(rollout: Rollout) -> float | None:
    """What the first reward function gave, before its weight."""
    return next(iter(rollout.reward_parts.values()), rollout.reward)
