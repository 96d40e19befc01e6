"""The source of pi_old's log-probabilities, the effect of sampler-trainer noise on the ratio, and weights within a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from gspo.objective.advantages import expectation_weights
from gspo.objective.mismatch import noise_is_tolerable
from gspo.rollout.credit import TrainingBatch, completion_of
from gspo.training.state import Run
from gspo.types import Agreement, Completion, Metrics


def of(run: Run, batch: TrainingBatch) -> tuple[bool, list[Completion]]:
    """The last two arguments of `Learner.prepare`: whether to recompute pi_old's log-probabilities with the current policy
    and, if the batch is stale, completions sampled by the current weights, since only those show the effect of numerics.
    """
    fresh: list[Completion] = []
    if run.source.stale:
        fresh = [completion_of(rollout, 0.0) for rollout in run.source.fresh() if rollout.sampled.any()]
    trained = [completion for group in batch.groups for completion in group]
    recompute = old_logprobs(run, fresh or trained, trained if fresh else ()) == "recompute"
    return recompute, (fresh or trained) if run.source.stale else []


def weighed_by_group(groups: Sequence[Sequence[Completion]]) -> list[list[Completion]]:
    """The completions of each group, A_i times q_i / E_q[q] (GEPO); q_i is the geometric mean of the tokens' mu."""
    weights = (expectation_weights(torch.stack([c.logp_mu.double().mean() for c in group])) for group in groups)
    return [
        [replace(c, advantage=c.advantage * weight) for c, weight in zip(group, some.tolist())]
        for group, some in zip(groups, weights)
    ]


def old_logprobs(run: Run, fresh: Sequence[Completion], batch: Sequence[Completion] = ()) -> str:
    """algorithm.old_logprobs, "auto" resolved on the first batch. fresh: completions of the current weights. batch: those
    that are trained on, if they are others.
    """
    setting = run.config.algorithm.old_logprobs
    if setting != "auto":
        return setting
    if not run.old_logprobs:
        agreement = run.learner.compare(fresh, batch)
        kl = agreement.metrics.get("mismatch/kl", 0.0)
        kept = noise_is_tolerable(run.row, agreement.clipped, kl) or "logp_old" not in run.row.likelihoods
        run.old_logprobs = "sampler" if kept else "recompute"
        clip = "" if run.learner.clip is None else ", the clip range is {:.1e}/{:.1e}".format(*run.learner.clip)
        run.log.event(
            "info",
            f'algorithm.old_logprobs = "auto" is "{run.old_logprobs}" in this run: the noise floor of the ratio is '
            f"{agreement.noise:.1e}{clip}, numerics alone would clip {agreement.clipped:.1%} of the tokens, and the "
            f"sampler differs from the trainer by {kl:.1e} nats a token",
        )
    return run.old_logprobs


def warn_of_floor(run: Run, agreement: Agreement | None) -> None:
    """Warns if the noise floor of the ratio reaches the clip range. agreement: of a step's updates."""
    if agreement is None:
        return
    noise, reach = agreement.noise, min(run.learner.clip or (float("inf"),))
    if noise >= reach and run.row.level != "token" and run.config.algorithm.epsilon != "auto":
        recomputed = "recompute" in (run.config.algorithm.old_logprobs, run.old_logprobs)
        remedy = "" if recomputed else 'set algorithm.old_logprobs = "recompute", '
        run.log.warn(
            f"the noise floor of the ratio ({noise:.1e}) reaches the clip range ({reach:.1e}): rounding decides what is "
            f"clipped. Widen algorithm.epsilon and epsilon_high, {remedy}or use higher precision"
        )


def end_step(run: Run) -> Metrics:
    """Metrics with the clip range of this step. An automatic range then moves."""
    clip = run.learner.clip
    at_floor = run.learner.finish()
    if clip is None:
        return {}
    if at_floor and run.learner.clip is not None:
        low, high = run.learner.clip
        run.log.warn(
            f"the clip range stands at the noise floor, {low:.1e}/{high:.1e}: fewer than algorithm.clip_target = "
            f"{run.config.algorithm.clip_target:g} of the tokens with an advantage move more than rounding does. "
            "More updates a batch (mini_batches, epochs), a higher optimizer.lr or higher precision would lift it"
        )
    return {"clip/epsilon": clip[0], "clip/epsilon_high": clip[1]}
