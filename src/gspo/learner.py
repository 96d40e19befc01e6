"""One update: count, forward, backward, step.

The denominator is one number for the whole update, known before the first forward pass, so that micro-batches, their
order and the number of processes change no gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gspo import layout
from gspo.config import AlgorithmConfig
from gspo.objective import divergence
from gspo.objective.algorithms import Algorithm
from gspo.objective.losses import sequence_ratio
from gspo.objective.replies import Replies
from gspo.optimiser import Optimiser
from gspo.ports import Policy
from gspo.types import Batch, Reply

Stats = dict[str, Tensor]


class Objective(Protocol):
    """What an update minimises."""

    def denominator(self, replies: Sequence[Reply]) -> float:
        """What the sum of all terms of this update is divided by."""
        ...

    def terms(self, logp: Tensor, entropy: Tensor, batch: Batch) -> tuple[Tensor, Stats]:
        """The terms to be summed, [S] or [N], and detached statistics, each [S] or [N]."""
        ...

    def summary(self, stats: Stats) -> dict[str, float]:
        """Metrics of one update from the statistics of all its micro-batches."""
        ...


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

    def terms(self, logp: Tensor, entropy: Tensor, batch: Batch) -> tuple[Tensor, Stats]:
        """The loss of each reply [S]; the KL term is averaged over tokens as the loss is."""
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
            "s_mu": sequence_ratio(logp.detach(), batch.logp_mu, y),
            "kl_mu": divergence.k3(batch.logp_mu, logp),
            "p_mu": (logp.exp() - batch.logp_mu.exp()).abs(),
        }
        if batch.logp_ref is not None:
            over = y.mean if self.row.counts == "replies" else y.sum
            loss = loss + self.beta * over(self.kl(logp, batch.logp_ref))
            stats["kl_ref"] = divergence.k3(logp, batch.logp_ref)
        return loss, {name: value.detach() for name, value in stats.items()}

    def summary(self, stats: Stats) -> dict[str, float]:
        """Clip fractions count replies for sequence-level algorithms, tokens for token-level ones."""
        y = Replies.of(stats["length"])
        count = y.mean if self.row.level == "sequence" else (lambda x: x)
        low, high = (float(count(stats[name]).mean()) for name in ("low", "high"))
        metrics = {
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
        return metrics

    @staticmethod
    def mismatch(stats: Stats) -> dict[str, float]:
        """How far sampler (mu) and trainer disagree, from statistics taken at the very weights that sampled.

        ratio/noise_floor: standard deviation of s_i - 1, so numerics and not staleness. mismatch/kl: k3 estimate of
        KL(mu || pi). mismatch/prob_mean, prob_max: |pi - mu| over tokens.
        """
        return {
            "ratio/noise_floor": std(stats["s_mu"].double() - 1),
            "mismatch/kl": float(stats["kl_mu"].mean()),
            "mismatch/prob_mean": float(stats["p_mu"].mean()),
            "mismatch/prob_max": float(stats["p_mu"].max()),
        }


class Imitation:
    """Supervised fine-tuning: minus the mean log-probability of the completions' tokens."""

    def denominator(self, replies: Sequence[Reply]) -> float:
        """Completion tokens."""
        return float(sum(int(reply.sampled.sum()) for reply in replies))

    def terms(self, logp: Tensor, entropy: Tensor, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        return -logp, {"entropy": entropy, "nll": -logp.detach()}

    def summary(self, stats: Stats) -> dict[str, float]:
        """loss: nats a token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}


class Learner:
    """A policy and its optimiser. `max_tokens`: most tokens, padding included, in one forward pass."""

    def __init__(self, policy: Policy, optimiser: Optimiser, max_tokens: int):
        self.policy = policy
        self.optimiser = optimiser
        self.max_tokens = max_tokens

    def update(self, objective: Objective, replies: Sequence[Reply]) -> tuple[dict[str, float], Stats]:
        """One optimiser step on these replies. Returns its metrics and the statistics behind them."""
        denominator = objective.denominator(replies)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        total = torch.zeros((), dtype=torch.float64)
        for part in layout.micro_batches(replies, self.max_tokens, self.policy.shares_prompts):
            batch = layout.build(part, self.policy.shares_prompts)
            logp, entropy = self.policy.logprobs(batch, entropy=True)
            assert entropy is not None
            terms, stats = objective.terms(logp, entropy, batch.to(self.policy.device))
            loss = terms.sum() / denominator
            loss.backward()
            total += loss.detach().cpu().double()
            for name, value in stats.items():
                gathered[name].append(value)
        done = self.optimiser.step(float(total))
        merged = {name: torch.cat(values).cpu() for name, values in gathered.items()}
        return {"loss": float(total)} | objective.summary(merged) | done, merged

    @torch.no_grad()
    def logprobs(self, policy: Policy, replies: Sequence[Reply]) -> list[Tensor]:
        """Log-probabilities [|y|] of each reply's sampled tokens under `policy` (pi_old recomputed, or a reference)."""
        found: dict[int, Tensor] = {}
        for part in layout.micro_batches(replies, self.max_tokens, policy.shares_prompts):
            batch = layout.build(part, policy.shares_prompts)
            logp, _ = policy.logprobs(batch)
            for reply, value in zip(part, logp.cpu().split(batch.length.tolist())):
                found[id(reply)] = value
        return [found[id(reply)] for reply in replies]


def std(x: Tensor) -> float:
    """Sample standard deviation, 0 for fewer than two values."""
    return float(x.std()) if len(x) > 1 else 0.0
