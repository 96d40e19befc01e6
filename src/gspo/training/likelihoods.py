"""Where pi_old's likelihoods come from, and what the noise between sampler and trainer does to the ratio."""

from __future__ import annotations

from collections.abc import Sequence

from gspo.objective.mismatch import noise_is_tolerable
from gspo.rollout.credit import TrainingBatch, completion_of
from gspo.training.state import Run
from gspo.types import Completion, Metrics, Update


def of(run: Run, batch: TrainingBatch) -> tuple[bool, list[Completion]]:
    """What `Learner.prepare` is asked for: whether pi_old's likelihoods come from a pass of the policy as it is now, and
    completions of the present weights where the batch is stale, since numerics show on those alone.
    """
    fresh: list[Completion] = []
    if run.source.stale:
        fresh = [completion_of(rollout, 0.0) for rollout in run.source.fresh() if rollout.sampled.any()]
    known = fresh or [completion for group in batch.groups for completion in group]
    return old_logprobs(run, known) == "recompute", known if run.source.stale else []


def old_logprobs(run: Run, fresh: Sequence[Completion]) -> str:
    """algorithm.old_logprobs, with "auto" settled by the first batch, once for the run. fresh: of the present weights."""
    setting = run.config.algorithm.old_logprobs
    if setting != "auto":
        return setting
    if not run.old_logprobs:
        agreement = run.learner.compare(fresh)
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


def warn_of_floor(run: Run, first: Update) -> None:
    """A warning where the ratio's own noise reaches the clip range. first: the first update of a batch."""
    assert first.agreement is not None
    noise, reach = first.agreement.noise, min(run.learner.clip or (float("inf"),))
    if noise >= reach and run.row.level != "token" and run.config.algorithm.epsilon != "auto":
        recomputed = "recompute" in (run.config.algorithm.old_logprobs, run.old_logprobs)
        remedy = "" if recomputed else 'set algorithm.old_logprobs = "recompute", '
        run.log.warn(
            f"the noise floor of the ratio ({noise:.1e}) reaches the clip range ({reach:.1e}): rounding decides what is "
            f"clipped. Widen algorithm.epsilon and epsilon_high, {remedy}or use higher precision"
        )


def end_step(run: Run) -> Metrics:
    """The clip range of this step; a range that sets itself then moves."""
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
