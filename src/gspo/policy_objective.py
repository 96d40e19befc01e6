"""An algorithm of the table as what the learner minimises, and the metrics of an update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gspo.config import AlgorithmConfig
from gspo.objective import divergence
from gspo.objective.algorithms import Algorithm
from gspo.objective.losses import sequence_ratio
from gspo.objective.mismatch import std
from gspo.objective.replies import Replies
from gspo.routing import routing_metrics, routing_stats
from gspo.types import Batch, Outputs, Reply, Stats


class PolicyObjective:
    """A row of the table of algorithms, with its settings, as an Objective.

    max_completion_length: Dr.GRPO's constant, in tokens a reply.
    """

    def __init__(self, row: Algorithm, config: AlgorithmConfig, max_completion_length: int):
        assert config.epsilon is not None and config.epsilon_high is not None, "settings come from algorithms.resolve"
        self.row = row
        self.beta = config.beta
        self.kl = divergence.ESTIMATORS[config.kl_estimator]
        self.e_low, self.e_high = config.epsilon, config.epsilon_high
        self.max_completion_length = max_completion_length

    def denominator(self, replies: Sequence[Reply]) -> float:
        """Replies, sampled tokens, or replies x max_completion_length, as the algorithm counts them."""
        if self.row.counts == "tokens":
            return float(sum(len(reply.logp_old) for reply in replies))
        return float(len(replies) * (self.max_completion_length if self.row.counts == "budget" else 1))

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """The loss of each reply [S]; the KL term is averaged over tokens as the loss is."""
        logp, entropy = out.logp, out.entropy
        assert entropy is not None
        y = Replies(batch.reply, batch.length)
        loss, ratio, low, high = self.row.loss(logp, batch.logp_old, batch.advantage.to(logp), y, self.e_low, self.e_high)
        s = sequence_ratio(logp.detach(), batch.logp_old, y)
        stats = {
            "loss": loss,
            "ratio": s if self.row.level == "sequence" else ratio,
            "low": y.spread(low).float(),
            "high": y.spread(high).float(),
            "length": batch.length,
            "entropy": entropy,
            "kl": divergence.k3(batch.logp_old, logp),  # KL(pi_old || pi_theta), sampled from pi_old
            "logp": logp,  # for the mismatch of sampler and trainer
            "logp_mu": batch.logp_mu,
        }
        if batch.logp_ref is not None:
            over = y.mean if self.row.counts == "replies" else y.sum
            loss = loss + self.beta * over(self.kl(logp, batch.logp_ref))
            stats["kl_ref"] = divergence.k3(logp, batch.logp_ref)
        if out.routing is not None:
            stats |= routing_stats(out.routing, batch)
        return loss, {name: value.detach() for name, value in stats.items()}

    def summary(self, stats: Stats) -> dict[str, Any]:
        """Clip fractions count replies for sequence-level algorithms, tokens for token-level ones."""
        y = Replies.of(stats["length"])
        count = y.mean if self.row.level == "sequence" else (lambda x: x)
        low, high = (float(count(stats[name]).mean()) for name in ("low", "high"))
        metrics: dict[str, Any] = {
            "clip_ratio/low_mean": low,
            "clip_ratio/high_mean": high,
            "clip_ratio/region_mean": low + high,
            "clip_ratio/tokens": float((stats["low"] + stats["high"]).mean()),
            "ratio/mean": float(stats["ratio"].mean()),
            "ratio/std": std(stats["ratio"]),
            "entropy": float(stats["entropy"].mean()),
            "kl": float(stats["kl"].mean()),
        }
        if "kl_ref" in stats:
            metrics["kl_ref"] = float(stats["kl_ref"].mean())
        return metrics | routing_metrics(stats)
