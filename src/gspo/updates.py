"""The updates of one rollout batch, and what they tell: clip, noise floor, staleness."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from gspo.config.policy import AlgorithmConfig
from gspo.learner.layout import split
from gspo.objective.clip_range import NUMERICS
from gspo.objective.mismatch import mismatch, std
from gspo.objective.replies import Replies
from gspo.old_policy import Groups, disagreement, estimate, needs_pass, noise_ratio, paired, probe, recall
from gspo.ports import Policy
from gspo.rollout.credit import Learnable, reply_of
from gspo.run import Metrics, Run
from gspo.types import Reply, Stats


def learn(run: Run, batch: Learnable) -> Metrics:
    """The updates of one rollout batch; their metrics averaged."""
    metrics: Metrics = {}
    groups = batch.groups
    if not groups:
        run.log.warn(f"step {run.step} had no group to train on: too few rewards were left, or all of a group were equal")
        return nothing_learned(run)
    known = [reply for group in batch.groups for reply in group]
    if run.source.delay:  # these rollouts are stale: numerics show on those of the present weights
        newest = [rollout for group in run.source.newest for rollout in group.rollouts]
        known = [reply_of(rollout, 0.0) for rollout in newest if rollout.sampled.any()] or known
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
                    numerics = run.objective.numerics(logp, logp_mu, y, stats["advantage"]) * (1 - update["skipped/replies"])
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


def unread(run: Run, groups: Groups, mini_batches: int) -> set[int]:
    """Ids of the replies that no update reads: idle ones, beside others that are not."""
    found = set()
    for part in split(groups, mini_batches):
        idle = {id(reply) for reply in part if run.objective.idle(reply)}
        found |= idle if len(idle) < len(part) else set()
    return found


def decided(run: Run, known: Sequence[Reply]) -> AlgorithmConfig:
    """The algorithm, with old_logprobs = "auto" settled by the first batch, once for the run. known: replies of the present
    weights.
    """
    algorithm = run.config.algorithm
    if algorithm.old_logprobs != "auto":
        return algorithm
    if not run.old_logprobs:
        logp, logp_mu, y = paired(*probe(run.learner, known))
        share = run.objective.numerics(logp, logp_mu, y, torch.tensor([-1.0, 1.0]))
        run.old_logprobs = "recompute" if share > NUMERICS and "logp_old" in run.objective.row.likelihoods else "sampler"
        noise = std(noise_ratio(logp, logp_mu, y, run.objective.row.level))
        clip = "" if run.objective.clip is None else ", the clip range is {:.1e}/{:.1e}".format(*run.objective.clip)
        run.log.event(
            "info",
            f'algorithm.old_logprobs = "auto" is "{run.old_logprobs}" in this run: the noise floor of the ratio is '
            f"{noise:.1e}{clip}, and numerics alone would clip {share:.1%} of the tokens ({NUMERICS:.0%} is tolerated)",
        )
    return dataclasses.replace(algorithm, old_logprobs=run.old_logprobs)


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


def refer(run: Run, groups: Groups, reference: Policy) -> Groups:
    """The same replies with their log-probabilities under the reference."""
    with reference.awake():
        seen = iter(run.learner.read(reference, [reply for group in groups for reply in group]))
    return [[dataclasses.replace(reply, logp_ref=next(seen).logp) for reply in group] for group in groups]


def first_look(stats: Stats) -> Metrics:
    """The mismatch of sampler and trainer, from an update whose replies the same weights sampled."""
    found: Metrics = mismatch(stats["logp"], stats["logp_mu"], Replies.of(stats["length"]))
    differ = stats.get("overruled", stats.get("changed"))  # replaying the sampler's experts, the routers' own show it
    if differ is not None:
        found["moe/sampler_agreement"] = 1 - float(differ.mean())
    return found


def floor(run: Run, noise: float) -> None:
    """A warning where the ratio's own noise reaches the clip range."""
    reach = min(run.objective.clip or (float("inf"),))
    if noise >= reach and run.objective.row.level != "token" and run.objective.auto is None:
        recomputed = "recompute" in (run.config.algorithm.old_logprobs, run.old_logprobs)
        remedy = "" if recomputed else 'set algorithm.old_logprobs = "recompute", '
        run.log.warn(
            f"the noise floor of the ratio ({noise:.1e}) reaches the clip range ({reach:.1e}): rounding decides what is "
            f"clipped. Widen algorithm.epsilon and epsilon_high, {remedy}or use higher precision"
        )


def nothing_learned(run: Run) -> Metrics:
    """The metrics of a step without updates: every name is there, without a value."""
    names = (
        "loss clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean clip_ratio/tokens clip_ratio/replies "
        "clip_ratio/positive clip_ratio/negative clip_ratio/numerics clip_ratio/staleness ratio/mean ratio/std "
        "ratio/noise_floor mismatch/kl mismatch/prob_mean mismatch/prob_max mismatch/beyond_2x mismatch/weight_mean "
        "mismatch/weight_std mismatch/ess entropy kl grad_norm lr skipped/replies skipped/backward"
    )
    return dict.fromkeys(names.split()) | {"updates": 0, "updates/skipped": 0.0}
