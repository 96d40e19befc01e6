"""The run that a probe walks along: its settings, and its updates one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from gspo.config.schema import Config
from gspo.interfaces import Sampler
from gspo.learner.layout import split
from gspo.rollout.credit import training_batch
from gspo.training import likelihoods
from gspo.training.metrics import check_rewards
from gspo.training.state import Run

EMPTY = 10  # batches in a row that may have no group to train on


def probed(config: Config, folder: Path) -> Config:
    """The settings that a probe trains with, in this run folder: the run's own, but for what only matters to a long run.
    Raises ValueError for a run that cannot be probed.
    """
    if (config.scale.ranks or 1) > 1:
        raise ValueError(f"scale.ranks = {config.scale.ranks}: gspo probe runs in one process: set it to 1")
    if config.rollout.max_staleness:
        raise ValueError(
            f"rollout.max_staleness = {config.rollout.max_staleness}: gspo probe measures runs that train on the batch they "
            "have just sampled: set it to 0, and name ages beyond those of one batch to see what older completions would do"
        )
    if config.algorithm.name == "ppo":
        raise ValueError(
            'algorithm.name = "ppo": gspo probe compares objectives on the advantages of groups, and ppo has a critic\'s: '
            "set another"
        )
    return dataclasses.replace(
        config,
        stage=(),
        optimizer=dataclasses.replace(config.optimizer, warmup=0, schedule="constant"),
        rollout=dataclasses.replace(config.rollout, dynamic_sampling_rounds=0),
        eval=dataclasses.replace(config.eval, every=0),
        log=dataclasses.replace(config.log, trackers=[], dir=str(folder)),
    )


def updates(run: Run) -> Iterator[bool]:
    """The run's own updates, one after the other, as in training/step.py without its log: True for each. It ends where
    batch after batch has nothing to train on.
    """
    groups, empty = iter(run.source), 0
    while True:
        run.scorer.at(run.step, run.config.train.steps)
        run.step += 1
        batch_groups = list(islice(groups, run.config.rollout.num_prompts))
        check_rewards(run, batch_groups)
        algorithm = run.config.algorithm
        batch = training_batch(batch_groups, run.row, algorithm, run.config.rollout.mask_truncated_completions)
        parts = split(batch.groups, algorithm.mini_batches)
        empty = 0 if parts else empty + 1
        if empty > EMPTY:
            return
        if not parts:
            continue
        run.learner.prepare(parts, *likelihoods.of(run, batch))
        for number in range(algorithm.epochs * len(parts)):
            run.learner.update(number % len(parts))
            yield True
        run.learner.finish()
        publish(run, (run.sampler,))


def publish(run: Run, samplers: Sequence[Sampler]) -> None:
    """Gives these samplers the weights of now."""
    weights = run.learner.publish(run.sampler.version + 1)
    for sampler in dict.fromkeys(samplers):
        sampler.load(weights)
