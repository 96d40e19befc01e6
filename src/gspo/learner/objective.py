"""The objective of an algorithm of the table, and the metrics of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gspo.config.policy import ResolvedAlgorithm
from gspo.learner.routing_metrics import routing_metrics, routing_stats, routing_sums
from gspo.objective import corrections, divergence
from gspo.objective.algorithms import Algorithm, correction_level
from gspo.objective.clip_range import AutoClip, range_at
from gspo.objective.completions import Completions
from gspo.objective.load_balance import balance
from gspo.objective.losses import Surrogate, level_ratio
from gspo.objective.mismatch import std
from gspo.objective.ppo import value_loss
from gspo.types import Batch, Completion, Outputs, Stats


class PolicyObjective:
    """A row of the table of algorithms, with its settings, as an Objective. max_completion_length: Dr.GRPO's constant.
    teacher_weight: of the teacher in each token's advantage; 0 without one.
    """

    def __init__(
        self, row: Algorithm, config: ResolvedAlgorithm, max_completion_length: int, teacher_weight: float = 0.0
    ) -> None:
        self.row, self.teacher_weight = row, teacher_weight
        self.beta = config.beta
        self.kl = divergence.ESTIMATORS[config.kl_estimator]
        self.correction, self.correction_ratio = config.correction, config.correction_ratio
        self.correction_bounds = config.correction_low, config.correction_high or float("inf")
        self.opsm, self.aux_loss, self.entropy_bonus = config.opsm, config.aux_loss, config.entropy_bonus
        self.top_entropy, self.clip_cov = config.top_entropy, config.clip_cov
        self.kl_cov, self.kl_cov_weight = config.kl_cov, config.kl_cov_weight
        constants = {**row.constants, **row.critic, **config.constants}
        self.constants = {name: constants[name] for name in row.constants}
        self.critic = {name: constants[name] for name in row.critic}
        self.max_completion_length = max_completion_length
        self.auto: AutoClip | None = None
        self._range: tuple[float, float] | None = None
        self.epsilon_length = config.epsilon_length
        self.length = float(config.epsilon_length or 1)  # mean of the batch, in tokens
        if row.epsilon is not None and row.epsilon_high is not None:
            low, high = config.epsilon, config.epsilon_high
            if isinstance(low, str):
                self.auto = AutoClip(row.epsilon, row.epsilon_high, config.clip_target)
            else:
                assert low is not None and high is not None, "settings come from algorithms.resolve"
                self._range = low, high

    @property
    def clip(self) -> tuple[float, float] | None:
        """The current clip range, e_low and e_high; None for an algorithm without one. If it depends on the length, the
        range for the batch's mean length.
        """
        if self.auto is not None:
            return self.auto.e_low, self.auto.e_high
        if self._range is None or self.epsilon_length is None:
            return self._range
        low, high = range_at(torch.tensor(self.length, dtype=torch.float64), *self._range, self.epsilon_length)
        return float(low), float(high)

    def denominator(self, completions: Sequence[Completion]) -> float:
        """Number of completions, of sampled tokens, or of completions times max_completion_length, as the row says."""
        if self.row.counts == "tokens":
            return float(tokens(completions))
        return float(len(completions) * (self.max_completion_length if self.row.counts == "budget" else 1))

    def idle(self, completion: Completion) -> bool:
        """Whether the advantage is zero and no other term has a gradient (KL, entropy, auxiliary loss, critic, teacher).
        KL-Cov may penalise any token: where A = 0, its covariance need not be.
        """
        others = self.beta or self.kl_cov or self.entropy_bonus or self.aux_loss or self.critic or self.teacher_weight
        return not (others or torch.as_tensor(completion.advantage).any())

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """The loss of each completion [S], and statistics. KL, entropy and auxiliary loss are averaged as the loss is."""
        logp, y = out.logp, Completions(batch.completion, batch.length, batch.turn, batch.turn_length)
        A = batch.advantage.to(logp)
        if batch.logp_teacher is not None:
            A = y.spread(A) + self.teacher_weight * (batch.logp_teacher - batch.logp_old)  # [N]
        A, weights = self.weighed(A, logp, batch, y)
        trained = logp if batch.marked is None or self.kl_cov else torch.where(batch.marked, logp.detach(), logp)
        surrogate = self.surrogate(trained, A, y, vars(batch))
        loss, _, low, high = surrogate
        assert out.entropy is not None
        stats = {
            "loss": loss,
            "ratio": self.watched(surrogate, logp, batch.logp_old, y),
            "low": y.spread(low).float(),
            "high": y.spread(high).float(),
            "advantage": y.spread(A),
            "length": batch.length,
            "entropy": out.entropy,
            "kl": divergence.k3(batch.logp_old, logp),  # KL(pi_old || pi_theta), sampled from pi_old
            "logp": logp,  # for the mismatch between sampler and trainer
            "logp_mu": batch.logp_mu,
            **weights,
        }
        if batch.logp_teacher is not None:
            stats["kl_teacher"] = divergence.k1(batch.logp_old, batch.logp_teacher)
        if batch.values is not None and batch.returns is not None:
            assert out.values is not None
            wrong = value_loss(out.values, batch.values, batch.returns, self.critic["e_value"])
            loss = loss + self.critic["c_value"] * y.sum(wrong)
            stats |= {"value_loss": wrong, "value_error": batch.returns - batch.values, "returns": batch.returns}
        over = y.sum if self.row.sums else y.mean
        if batch.marked is not None:
            stats["marked"] = batch.marked.float()
            if self.kl_cov:
                loss = loss + self.kl_cov_weight * over(divergence.k3(batch.logp_old, logp) * batch.marked)
        if self.entropy_bonus:
            loss = loss - self.entropy_bonus * over(out.entropy)
        if batch.logp_ref is not None:
            loss = loss + self.beta * over(self.kl(logp, batch.logp_ref))
            stats["kl_ref"] = divergence.k3(logp, batch.logp_ref)
        if out.routing is not None:
            stats |= routing_stats(out.routing, batch)
            if out.routing.logits is not None:
                uneven = balance(out.routing.logits[batch.forest.parent[batch.node]], stats["routes"], y)
                loss = loss + self.aux_loss * (uneven * y.length if self.row.sums else uneven)
                stats["balance"] = uneven
        return loss, {name: value.detach() for name, value in stats.items()}

    def weighed(self, A: Tensor, logp: Tensor, batch: Batch, y: Completions) -> tuple[Tensor, Stats]:
        """The advantages, masked off policy and times the weights of the correction; and statistics of both."""
        stats: Stats = {}
        if self.opsm is not None:
            gone = corrections.off_policy(logp, batch.logp_mu, A, y, self.opsm)
            A = A.masked_fill(gone, 0.0)
            stats["masked"] = (gone if gone.shape == y.length.shape else y.sum(gone.to(logp)) > 0).float()  # [S]
        if self.correction != "none":
            level = correction_level(self.row, self.correction)
            r = corrections.ratio(level, self.correction_ratio, batch.logp_old, batch.logp_mu, y)  # [S] or [N]
            weight = corrections.CORRECTIONS[self.correction](r, *self.correction_bounds)
            A = A * weight if A.shape == weight.shape else y.spread(A) * y.spread(weight)
            stats |= {"weight": weight, "weighed_ratio": r}
        return A, stats

    def surrogate(self, logp: Tensor, A: Tensor, y: Completions, likelihoods: Mapping[str, Tensor]) -> Surrogate:
        """The row's loss with its own log-probabilities, clip range and constants."""
        given = {name: likelihoods[name] for name in self.row.likelihoods}
        clip: Any = self.clip or ()
        if self._range is not None and self.epsilon_length is not None:
            own = y.turns() if self.row.level == "turn" else y
            length = own.length.to(logp)  # as the ratio: [S], or [N] where it is one per token
            clip = range_at(own.spread(length) if self.row.by_turn else length, *self._range, self.epsilon_length)
        limits = dict(zip(("e_low", "e_high"), clip))
        return self.row.loss_function(logp=logp, A=A, y=y, **given, **limits, **self.constants)

    def watched(self, surrogate: Surrogate, logp: Tensor, logp_old: Tensor, y: Completions) -> Tensor:
        """The ratio for metrics: s_i [S] at sequence level, w_it [N] if the loss has no ratio, else the loss's own."""
        own = self.row.level != "sequence" and self.row.likelihoods
        return surrogate.ratio if own else level_ratio(self.row.level, logp, logp_old, y)

    def condensed(self, stats: Stats) -> Stats:
        """The statistics with routing reduced to sums."""
        return routing_sums(stats)

    def summary(self, stats: Stats, completions: Sequence[Completion] = ()) -> dict[str, Any]:
        """Metrics of one update from condensed statistics. low_mean and high_mean count completions for sequence-level
        algorithms, else tokens.

        completions: all of the update; those missing from the statistics count as not clipped. If all are missing, only the
        shares of clipped tokens and completions are known.
        """
        if not stats:
            return {f"clip_ratio/{name}": 0.0 for name in ("low_mean", "high_mean", "region_mean", "tokens", "completions")}
        y = Completions.of(stats["length"])
        count = y.mean if self.row.level == "sequence" else (lambda x: x)
        of = {"completions": max(len(completions), len(y.length)), "tokens": max(tokens(completions), len(y.completion))}
        each = of["completions" if self.row.level == "sequence" else "tokens"]
        low, high = (float(count(stats[name]).sum()) / each for name in ("low", "high"))
        clipped, A = stats["low"] + stats["high"], stats["advantage"]
        metrics: dict[str, Any] = {
            "clip_ratio/low_mean": low,
            "clip_ratio/high_mean": high,
            "clip_ratio/region_mean": low + high,
            "clip_ratio/tokens": float(clipped.sum()) / of["tokens"],
            "clip_ratio/completions": int((y.sum(clipped) > 0).sum()) / of["completions"],
            "clip_ratio/positive": float(clipped[A > 0].mean()),
            "clip_ratio/negative": float(clipped[A < 0].mean()),
            "clip_ratio/with_advantage": float(clipped[A != 0].mean()),
            "ratio/mean": float(stats["ratio"].mean()),
            "ratio/std": std(stats["ratio"]),
            "entropy": float(stats["entropy"].mean()),
            "kl": float(stats["kl"].mean()),
        }
        if "masked" in stats:
            metrics["opsm/masked"] = int(stats["masked"].sum()) / of["completions"]
        if "marked" in stats:
            metrics["marked/tokens"] = float(stats["marked"].sum()) / of["tokens"]
        if "weight" in stats:
            weight, r, (lower, upper) = stats["weight"], stats["weighed_ratio"], self.correction_bounds
            metrics |= {
                "correction/weight_mean": float(weight.mean()),
                "correction/zero": float((weight == 0).float().mean()),
                "correction/low": float((r < (lower or 0.0)).float().mean()),
                "correction/high": float((r > upper).float().mean()),
                "correction/ratio_min": float(r.min()),
                "correction/ratio_max": float(r.max()),
            }
        if "returns" in stats:
            spread = stats["returns"].var()
            unexplained = stats["value_error"].var() / spread if spread > 1e-12 else float("nan")
            metrics |= {"value/loss": float(stats["value_loss"].mean()), "value/explained": 1 - float(unexplained)}
        if "kl_ref" in stats:
            metrics["kl_ref"] = float(stats["kl_ref"].mean())
        if "kl_teacher" in stats:
            metrics["teacher/kl"] = float(stats["kl_teacher"].mean())
        return metrics | routing_metrics(stats)

    def numerics(self, logp: Tensor, logp_mu: Tensor, y: Completions, A: Tensor) -> float:
        """Share of tokens whose gradient the clip removes when only numerics move the ratio: log pi and log mu [N] of
        completions `y` that the current weights sampled. A: [S] or [N], of any completions; only the signs matter.
        """
        share, likelihoods = 0.0, {"logp_old": logp_mu, "logp_mu": logp_mu}
        for sign in (-1.0, 1.0):
            surrogate = self.surrogate(logp, torch.full(y.length.shape, sign).to(logp), y, likelihoods)
            clipped = y.spread(surrogate.clipped_low | surrogate.clipped_high)
            share += float(clipped.double().mean() * (A * sign > 0).double().mean())
        return share

    def at_length_of_batch(self, logp: Tensor, logp_mu: Tensor, y: Completions) -> Tensor:
        """log pi [N] of short probes, as far from their log mu as rounding would put ratios over the batch's mean length:
        its spread falls as 1 / sqrt(length). With `epsilon_length` the clip range of each depends on its length instead.
        """
        if self.row.level == "token" or not self.length or self.epsilon_length is not None:
            return logp
        length = (y.turns() if self.row.level == "turn" else y).length.double().mean()
        return logp_mu + (logp - logp_mu) * float((length / self.length).sqrt())

    def begin(self, completions: Sequence[Completion]) -> None:
        """Takes the mean length of the completions or turns of a batch, from which an automatic clip range starts."""
        if completions and self.row.level != "token":
            by_turn = self.row.level == "turn"
            count = sum(len(c.turn.unique()) if by_turn and c.turn is not None else 1 for c in completions)
            self.length = tokens(completions) / count
            if self.auto is not None:
                self.auto.begin(self.length)

    def watch(self, stats: Stats) -> None:
        """Passes the ratios and advantages of an update to an automatic clip range."""
        if self.auto is not None:
            self.auto.observe(Completions.of(stats["length"]).spread(stats["ratio"]), stats["advantage"])

    def update_range(self, noise: Tensor) -> bool:
        """Moves an automatic range. noise: ratios moved by numerics alone, [S] or [N]. Returns whether these bound it."""
        if self.auto is None:
            return False
        self.auto.update_range(noise)
        return self.auto.at_floor

    def state_dict(self) -> dict[str, Any]:
        """The clip range, if it is automatic."""
        return {} if self.auto is None else self.auto.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        if self.auto is not None:
            self.auto.load_state_dict(state)


def tokens(completions: Sequence[Completion]) -> int:
    """Number of sampled tokens."""
    return sum(len(completion.logp_old) for completion in completions)
