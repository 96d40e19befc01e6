"""Supervised fine-tuning: the loop of `gspo sft`, with the learner and the run folder of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gspo.config.files import to_toml
from gspo.config.schema import Config
from gspo.data.prompts import PromptStream
from gspo.interfaces import SupervisedLearner
from gspo.runs import checkpoint
from gspo.runs.log import RunLog
from gspo.runs.progress import Progress
from gspo.runs.signals import stop_signals
from gspo.types import Completion, Metrics


@dataclass
class SupervisedRun:
    """All components and state of a supervised run (created by assembly/assemble.py). data: fingerprint of the rows."""

    config: Config
    rows: PromptStream[Completion]
    learner: SupervisedLearner
    log: RunLog
    screen: Progress
    data: str
    step: int = 0
    tokens: int = 0


def imitated(prompt: Sequence[int], completion: Sequence[int]) -> Completion:
    """A training target from token ids; old log-probabilities and advantage are 0."""
    tokens = torch.tensor([*prompt, *completion])
    sampled = torch.arange(len(tokens)) >= len(prompt)
    zeros = torch.zeros(len(completion))
    return Completion(tokens, sampled, logp_mu=zeros, logp_old=zeros, advantage=0.0)


def fit(run: SupervisedRun) -> Metrics:
    """Trains until the last step or a stop signal. Returns the last step's metrics."""
    train = run.config.train
    metrics: Metrics = {}
    with stop_signals(run.log.note) as stop:
        while run.step < train.steps and not stop.asked:
            begin = time.perf_counter()
            run.log.step = run.step + 1
            rows = run.rows.take(train.batch_size)
            run.learner.take([rows])
            update = run.learner.update(0)
            seconds = time.perf_counter() - begin
            tokens = sum(len(row.tokens) for row in rows)
            run.step, run.tokens = run.step + 1, run.tokens + tokens
            metrics = {"step": run.step} | update.metrics | {
                "tokens": tokens,
                "tokens_total": run.tokens,
                "time/train": seconds,
                "tokens_per_second": tokens / seconds,
            }  # fmt: skip
            run.log.metrics(metrics)
            if run.step % train.save_every == 0 or run.step == train.steps or stop.asked:
                save(run, needed=run.step == train.steps or stop.asked)
    return metrics


def save(run: SupervisedRun, needed: bool = True) -> None:
    """Writes a checkpoint, as gspo.training.state.save does."""
    state = {"position": run.rows.position, "data": run.data, "tokens": run.tokens, "log": run.log.position()}
    keep = run.config.train.keep_checkpoints
    checkpoint.save(run.log.folder.checkpoints, run.step, run.learner.save, state, to_toml(run.config), keep, needed)


def restore(run: SupervisedRun, state: dict[str, Any]) -> None:
    """Continues from a checkpoint whose model the policy already holds."""
    checkpoint.check_same_data(state["data"], run.data)
    run.step, run.tokens, run.rows.position = state["step"], state["tokens"], state["position"]
    run.learner.resume(checkpoint.folder_of(run.log.folder.checkpoints, run.step))
    checkpoint.check_threads(state, run.config.model.device)
