"""Cold start: supervised fine-tuning with the learner, the optimizer and the run folder of training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gspo.config.schema import Config
from gspo.learner.learner import Learner
from gspo.ports import Policy
from gspo.runs import checkpoint
from gspo.runs.log import RunLog
from gspo.runs.progress import Progress
from gspo.types import Batch, Completion, Outputs, Stats


class RowSource(Protocol):
    """Hands out rows as completions to imitate, pass after pass."""

    position: int

    def take(self, k: int) -> list[Completion]:
        """The next k rows."""
        ...


@dataclass
class ColdStart:
    """Everything that a supervised run is made of (build/assemble.py makes it).

    data: a fingerprint of the rows. step: updates done.
    """

    config: Config
    policy: Policy
    rows: RowSource
    learner: Learner
    log: RunLog
    screen: Progress
    data: str
    step: int = 0
    tokens: int = 0


def imitated(prompt: Sequence[int], completion: Sequence[int]) -> Completion:
    """A completion whose completion is to be imitated; it has no old likelihoods and no advantage."""
    tokens = torch.tensor([*prompt, *completion])
    sampled = torch.arange(len(tokens)) >= len(prompt)
    zeros = torch.zeros(len(completion))
    return Completion(tokens, sampled, logp_mu=zeros, logp_old=zeros, advantage=0.0)


def fit(run: ColdStart) -> dict[str, Any]:
    """Trains until the last step, or until asked to stop. Returns the last step's metrics."""
    train, metrics, objective = run.config.train, {}, Imitation()
    with checkpoint.stop_signals(run.log.note) as stop:
        while run.step < train.steps and not stop.asked:
            begin = time.perf_counter()
            rows = run.rows.take(train.batch_size)
            update, _ = run.learner.update(objective, rows)
            seconds = time.perf_counter() - begin
            tokens = sum(len(row.tokens) for row in rows)
            run.step, run.tokens = run.step + 1, run.tokens + tokens
            metrics = {"step": run.step} | update | {
                "tokens": tokens,
                "tokens_total": run.tokens,
                "time/train": seconds,
                "tokens_per_second": tokens / seconds,
            }  # fmt: skip
            run.log.metrics(metrics)
            if run.step % train.save_every == 0 or run.step == train.steps or stop.asked:
                save(run)
    return metrics


def save(run: ColdStart) -> None:
    """A checkpoint of everything that the next step depends on."""
    state = {
        "optimizer": run.learner.optimizer.state_dict(),
        "position": run.rows.position,
        "data": run.data,
        "tokens": run.tokens,
        "log": run.log.position(),
    }
    folder = run.log.folder
    checkpoint.save(folder.checkpoints, run.step, run.policy.save, state, run.config.train.keep_checkpoints)


def restore(run: ColdStart, state: dict[str, Any]) -> None:
    """Continue from a checkpoint whose model the policy already holds."""
    checkpoint.same_data(state["data"], run.data)
    run.step, run.tokens, run.rows.position = state["step"], state["tokens"], state["position"]
    run.learner.optimizer.load_state_dict(state["optimizer"])


class Imitation:
    """Supervised fine-tuning: minus the mean log-probability of the completions' tokens."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """Completion tokens."""
        return float(sum(int(completion.sampled.sum()) for completion in completions))

    def idle(self, completion: Completion) -> bool:
        """Every completion is imitated."""
        return False

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        assert out.entropy is not None
        return -out.logp, {"entropy": out.entropy, "nll": -out.logp.detach()}

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, float]:
        """loss: nats a token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}
