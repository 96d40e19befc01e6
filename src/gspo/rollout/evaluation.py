"""Held-out accuracy with a 95 % interval."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gspo.interfaces import Report, Sampler, Scorer
from gspo.rollout.failures import failed, first
from gspo.rollout.metrics import batch_metrics
from gspo.rollout.synchronous import sample_groups
from gspo.statistics.intervals import accuracy_interval
from gspo.types import Group, Prompt, Sampling


def evaluate(
    sampler: Sampler,
    scorer: Scorer,
    prompts: Sequence[Prompt],
    n: int,
    sampling: Sampling,
    correct_threshold: float,
    report: Report = lambda phase, done, total: None,
) -> tuple[dict[str, float], list[Group]]:
    """Samples n completions per prompt and scores them. Returns metrics, all named `eval/...` or `time/eval`, and the
    groups.

    `eval/accuracy` is the mean share of completions to which the first reward function gives at least `correct_threshold`. A
    completion that it did not score counts as wrong, since graders mostly fail on bad ones. `eval/failed` counts these, and
    those without a reward.
    """
    begin = time.perf_counter()
    groups, _ = sample_groups(sampler, scorer, prompts, n, sampling, lambda *args: report("evaluating", *args[1:]))
    shares = []
    for group in groups:
        values = list(map(first, group.rollouts))
        shares.append(sum(value is not None and value >= correct_threshold - 1e-9 for value in values) / len(values))
    accuracy = accuracy_interval(shares)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    means = batch_metrics(rollouts)
    means.pop("tokens")
    metrics = {"accuracy": accuracy.mean, "accuracy_low": accuracy.low, "accuracy_high": accuracy.high} | means
    metrics["failed"] = float(sum(map(failed, rollouts)))
    metrics["prompts"] = float(len(prompts))
    named = {f"eval/{name.removeprefix('completions/')}": value for name, value in metrics.items()}
    return named | {"time/eval": time.perf_counter() - begin}, groups
