"""Metrics of a step (sampling and updates), warnings, and log lines of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gspo.rollout.credit import TrainingBatch, completion_of
from gspo.rollout.failures import errors
from gspo.rollout.metrics import describe, in_parts, staleness
from gspo.training.state import Run
from gspo.types import Agreement, Group, Metrics, Update

UNLEARNED = (
    "loss", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/tokens",
    "clip_ratio/completions", "clip_ratio/positive", "clip_ratio/negative", "clip_ratio/with_advantage",
    "clip_ratio/noise_only", "clip_ratio/staleness", "ratio/mean", "ratio/std", "ratio/noise_floor", "mismatch/kl",
    "mismatch/prob_mean", "mismatch/prob_max", "mismatch/ratio_over_2", "mismatch/weight_mean", "mismatch/weight_std",
    "mismatch/ess", "entropy", "kl", "grad_norm", "lr", "no_signal/completions", "no_signal/backward",
)  # fmt: skip

EXTREMES: dict[str, Callable[[list[Any]], Any]] = {"correction/ratio_min": min, "correction/ratio_max": max}


def of_sampling(run: Run, groups: Sequence[Group]) -> Metrics:
    """Staleness of the rollouts, sampling times, and the counters of the source and the sampler."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    age = {"staleness": staleness(rollouts, run.sampler.version), "rollouts/multi_version": in_parts(rollouts)}
    return age | run.source.metrics | run.sampler.counts()


def of_updates(updates: Sequence[Update]) -> Metrics:
    """The mean metrics of a step's updates (of EXTREMES the extreme), and the effect of numerics alone. A metric of what was
    read is a mean over the updates that read something, and None if none did.
    """
    names = dict.fromkeys(name for update in updates for name in update.metrics)
    there = {name: [update.metrics[name] for update in updates if name in update.metrics] for name in names}
    metrics = {name: EXTREMES.get(name, mean)(values) for name, values in there.items()}
    agreement = first_agreement(updates)
    if agreement is not None:
        metrics = agreement.metrics | metrics
        metrics["clip_ratio/noise_only"] = agreement.clipped
        metrics["clip_ratio/staleness"] = max(0.0, metrics["clip_ratio/tokens"] - agreement.clipped)
    skipped = sum(update.metrics["updates/skipped"] for update in updates)
    counts = {"lr": updates[-1].metrics["lr"], "updates": len(updates), "updates/skipped": skipped}
    return dict.fromkeys(UNLEARNED) | metrics | counts


def first_agreement(updates: Sequence[Update]) -> Agreement | None:
    """The effect of numerics alone, as the first update that read a completion found it; None if none did."""
    return next((update.agreement for update in updates if update.agreement is not None), None)


def nothing_learned() -> Metrics:
    """The metrics of a step without updates: every name is present, with a value of None."""
    return dict.fromkeys(UNLEARNED) | {"updates": 0, "updates/skipped": 0.0}


def mean(values: list[Any]) -> Any:
    """The mean of numbers, or the element-wise mean of lists of numbers. Ignores NaN."""
    if isinstance(values[0], list):
        return [mean(list(each)) for each in zip(*values)]
    there = [value for value in values if value == value]  # a share of zero tokens is NaN
    return sum(there) / len(there) if there else float("nan")


def warn_of_sampling(run: Run, metrics: Metrics) -> None:
    """Warns about steps that provide no learning signal. Each warning is shown only once."""
    if metrics["frac_reward_zero_std"] == 1 and not run.config.teacher.path and not run.row.critic:
        run.log.warn(
            "in every group of a step all completions got the same reward, so nothing was learned from them. Is the "
            "task too easy or too hard, or does the reward never see what it looks for? Look at rollouts.jsonl"
        )


def check_rewards(run: Run, groups: Sequence[Group]) -> None:
    """Warns about completions without a reward, aloud if it is news. Raises RewardsFailed if the run cannot continue."""
    run.failures.check(groups, run.step)
    text, news = run.failures.report([*errors(groups), *run.source.unused], run.step)
    if text:
        run.log.warn(text, aloud=news)


def show_prompt(run: Run, groups: Sequence[Group]) -> None:
    """Logs what stood before the first token that the policy sampled, unless the run has shown a prompt already."""
    rollouts = (rollout for group in groups for rollout in group.rollouts if rollout.sampled.any())
    if (first := next(rollouts, None)) is not None:
        tokens = first.tokens[: int(first.sampled.int().argmax())].tolist()
        run.log.prompt(run.decode(tokens), len(tokens))


def rollout_lines(run: Run, groups: Sequence[Group], batch: TrainingBatch) -> list[Metrics]:
    """One line per rollout for rollouts.jsonl. A few evenly spaced ones include each token's log-ratio after this step."""
    if not run.config.log.rollouts:
        return []
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    number = [index for index, group in enumerate(groups) for _ in group.rollouts]
    lines: list[Metrics] = [
        {"step": run.step, "group": index, "advantage": A} | describe(rollout, run.config.reward.answer_column)
        for index, A, rollout in zip(number, batch.advantages, rollouts)
    ]
    sampled = [i for i, rollout in enumerate(rollouts) if rollout.sampled.any()]  # an episode may fail before any token
    count = min(run.config.log.token_rollouts, len(sampled))
    chosen = [sampled[i * len(sampled) // count] for i in range(count)]
    completions = [completion_of(replace(rollouts[i], logp_teacher=None), 0.0) for i in chosen]
    for i, completion, logp in zip(chosen, completions, run.learner.read(completions) if completions else []):
        lines[i] |= {
            "tokens": [run.decode([token]) for token in completion.tokens[completion.sampled].tolist()],
            "logp": completion.logp_mu.tolist(),
            "log_ratio": (logp - completion.logp_mu).tolist(),  # how far this step's updates moved the token
        }
        if completion.turn is not None:
            lines[i]["token_turns"] = completion.turn.tolist()
    return lines
