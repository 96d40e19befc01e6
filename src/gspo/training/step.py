"""The updates of one rollout batch, and what they tell: clip, noise floor, staleness."""

from __future__ import annotations

from typing import Any

import torch

from gspo.learner.layout import split
from gspo.objective.mismatch import std
from gspo.rollout.credit import Learnable, completion_of
from gspo.training.likelihoods import (
    decided,
    disagreement,
    estimate,
    first_look,
    floor,
    needs_pass,
    noise_ratio,
    paired,
    probe,
    recall,
    refer,
    unread,
)
from gspo.training.state import Metrics, Run


def learn(run: Run, batch: Learnable) -> Metrics:
    """The updates of one rollout batch; their metrics averaged."""
    metrics: Metrics = {}
    groups = batch.groups
    if not groups:
        run.log.warn(f"step {run.step} had no group to train on: too few rewards were left, or all of a group were equal")
        return nothing_learned(run)
    known = [completion for group in batch.groups for completion in group]
    if run.source.delay:  # these rollouts are stale: numerics show on those of the present weights
        newest = [rollout for group in run.source.newest for rollout in group.rollouts]
        known = [completion_of(rollout, 0.0) for rollout in newest if rollout.sampled.any()] or known
    algorithm = decided(run, known)
    seen = None
    if needs_pass(algorithm):
        groups, read, seen = recall(run.learner, groups, algorithm, unread(run, groups, algorithm.mini_batches or 1))
    if run.source.delay:
        known, seen = probe(run.learner, known)
    elif seen is not None:
        known = read
    if seen is not None:
        metrics = disagreement(known, seen)
    if run.objective.critic:
        groups = estimate(run.learner, groups, run.objective.critic, algorithm.scale_rewards or "batch")
    if run.reference is not None:
        groups = refer(run, groups, run.reference)
    parts = split(groups, algorithm.mini_batches or 1)
    updates: list[Metrics] = []
    noise, numerics = torch.ones(1), 0.0
    for _ in range(algorithm.epochs):
        for part in parts:
            run.screen.phase("updating", len(updates), len(parts) * algorithm.epochs)
            update, stats = run.learner.update(run.objective, part)
            run.objective.watch(stats, part)
            update |= run.learner.skipped
            if not updates:
                metrics = metrics or first_look(stats)
                if run.source.delay and algorithm.old_logprobs == "sampler":
                    assert seen is not None
                    logp, logp_mu, y = paired(known, seen)
                    noise = noise_ratio(logp, logp_mu, y, run.objective.row.level)
                    numerics = run.objective.numerics(logp, logp_mu, y, stats["advantage"]) * (
                        1 - update["skipped/completions"]
                    )
                else:  # no update yet: the ratio is nothing but noise
                    noise, numerics = stats["ratio"], update["clip_ratio/tokens"]
                floor(run, std(noise))
            updates.append(update)
    for name in updates[0]:
        metrics[name] = mean([update[name] for update in updates])
    metrics["clip_ratio/numerics"] = numerics
    metrics["clip_ratio/staleness"] = max(0.0, metrics["clip_ratio/tokens"] - numerics)
    metrics["lr"] = updates[-1]["lr"]
    metrics["updates/skipped"] = sum(update["updates/skipped"] for update in updates)
    return metrics | {"updates": len(updates)} | move_clip(run, noise)


def move_clip(run: Run, noise: torch.Tensor) -> Metrics:
    """The clip range of this step; a range that sets itself then moves."""
    if run.objective.clip is None:
        return {}
    found = dict(zip(("clip/epsilon", "clip/epsilon_high"), run.objective.clip))
    if run.objective.settle(noise):
        low, high = run.objective.clip
        run.log.warn(
            f"the clip range stands at the noise floor, {low:.1e}/{high:.1e}: fewer than algorithm.clip_target = "
            f"{run.config.algorithm.clip_target:g} of the tokens move more than rounding does. More updates a batch "
            "(mini_batches, epochs), a higher optimizer.lr or higher precision would lift it"
        )
    return found


def mean(values: list[Any]) -> Any:
    """The mean of numbers, or of lists of numbers, one by one."""
    if isinstance(values[0], list):
        return [mean(list(each)) for each in zip(*values)]
    there = [value for value in values if value == value]  # a share of no tokens is nan
    return sum(there) / len(there) if there else float("nan")


def nothing_learned(run: Run) -> Metrics:
    """The metrics of a step without updates: every name is there, without a value."""
    names = (
        "loss clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean clip_ratio/tokens clip_ratio/completions "
        "clip_ratio/positive clip_ratio/negative clip_ratio/numerics clip_ratio/staleness ratio/mean ratio/std "
        "ratio/noise_floor mismatch/kl mismatch/prob_mean mismatch/prob_max mismatch/beyond_2x mismatch/weight_mean "
        "mismatch/weight_std mismatch/ess entropy kl grad_norm lr skipped/completions skipped/backward"
    )
    return dict.fromkeys(names.split()) | {"updates": 0, "updates/skipped": 0.0}
