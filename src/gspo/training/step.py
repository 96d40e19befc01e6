"""One step: sample -> credit -> likelihoods -> update -> sync -> log."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

from gspo.interfaces import SamplerError
from gspo.learner.layout import split
from gspo.rollout.credit import training_batch
from gspo.training import advice, likelihoods
from gspo.training.evaluation import evaluates, held_out
from gspo.training.metrics import (
    check_rewards,
    first_agreement,
    nothing_learned,
    of_sampling,
    of_updates,
    rollout_lines,
    show_prompt,
    warn_of_sampling,
)
from gspo.training.state import Run, enter_stage, load, rest
from gspo.types import Group, Metrics


def step(run: Run, source: Iterable[Group], count: int | None = None) -> tuple[Metrics, str]:
    """A rollout batch of `count` groups (None: all there are), and its updates. Returns the step's metrics, and why the run
    has collapsed, "" where it has not.

    Raises SamplerError where the sampler is lost: before the first update, or in the sync, when the step is written down.
    Raises RewardsFailed, once it is written down, where no completion had a reward and the run cannot go on so.
    """
    begin = time.perf_counter()
    run.log.step = run.step + 1  # messages from here on belong to it
    groups = list(islice(source, count))  # sample
    sampling = of_sampling(run, groups)  # while the engines serve
    rest(run)  # they give up memory
    run.step, sampled = run.step + 1, time.perf_counter()
    if run.step == 1:
        show_prompt(run, groups)

    algorithm = run.config.algorithm
    batch = training_batch(groups, run.row, algorithm, run.config.rollout.mask_truncated_completions)  # credit
    metrics: Metrics = {"step": run.step} | batch.counts | sampling
    advice.of_range(run, metrics)
    weighed = likelihoods.weighed_by_group(batch.groups) if run.row.by_group else batch.groups
    mini_batches = split(weighed, algorithm.mini_batches)
    if mini_batches:
        run.learner.prepare(mini_batches, *likelihoods.of(run, batch))  # likelihoods
        metrics |= learn(run, len(mini_batches))  # update
    else:
        run.log.warn(f"step {run.step} had no group to train on: too few rewards were left, or all of a group were equal")
        metrics |= nothing_learned()
    run.tokens += int(metrics["tokens"])
    metrics |= {"time/train": time.perf_counter() - sampled, "tokens_total": run.tokens}

    lines = rollout_lines(run, groups, batch)  # before the next stage begins, which may read at another temperature
    lost: SamplerError | None = None
    try:
        sync(run, metrics)  # sync
    except SamplerError as error:  # the updates are done all the same
        lost = error
    try:
        collapsed = log(run, lines, metrics, time.perf_counter() - begin)  # log
    finally:
        if lost is not None:
            raise lost
    check_rewards(run, groups)
    advice.of_rewards(run, groups)
    return metrics, collapsed


def learn(run: Run, mini_batches: int) -> Metrics:
    """Each epoch's update on each mini-batch of the batch that the learner was given. Returns their combined metrics."""
    updates, total = [], run.config.algorithm.epochs * mini_batches
    for number in range(total):
        run.screen.phase("updating", number, total)
        updates.append(run.learner.update(number % mini_batches))
    likelihoods.warn_of_floor(run, first_agreement(updates))
    return of_updates(updates) | likelihoods.end_step(run)


def sync(run: Run, metrics: Metrics) -> None:
    """Gives the samplers the new weights, and evaluates if it is time to. Adds both to the step's metrics."""
    begin = time.perf_counter()
    run.unevaluated = evaluates(run)
    enter_stage(run)  # what proves the weights is sampled as the next step is
    load(run, run.sampler.version + 1)
    metrics["time/sync"] = time.perf_counter() - begin
    if run.unevaluated:
        metrics |= held_out(run)
        run.unevaluated = False


def log(run: Run, lines: Sequence[Metrics], metrics: Metrics, seconds: float) -> str:
    """Logs the step and its rollouts' lines, and adds times and the guard's metrics. Returns why the run has collapsed, or
    "". seconds: duration of the step, evaluation included.
    """
    warn_of_sampling(run, metrics)
    run.log.rollouts(lines)
    seconds -= metrics.get("time/eval", 0.0)
    metrics |= {"time/step": seconds, "tokens_per_second": metrics["tokens"] / seconds}
    verdict = run.guard.observe(metrics)
    run.good = verdict.good
    for text in verdict.warnings:
        run.log.warn(text)
    metrics |= verdict.metrics
    run.log.metrics(metrics)
    return verdict.collapsed
