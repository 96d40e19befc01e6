"""Estimators of the KL divergence from sampled tokens."""

from __future__ import annotations

from torch import Tensor

from gspo.objective.losses import bounded


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """log pi - log pi_ref, per token [N]: unbiased for KL(pi || pi_ref) under samples of pi, and may be negative.

    As a loss it does not hold the policy back: its gradient, grad log pi, is zero on average.
    """
    return logp - logp_ref


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """(log pi - log pi_ref)^2 / 2, per token [N]: biased and never negative. Its gradient is that of KL(pi || pi_ref)."""
    return (logp - logp_ref) ** 2 / 2


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """pi_ref/pi - 1 - log(pi_ref/pi), per token [N]: unbiased and never negative (Schulman 2020; GRPO, Eq. 4).

    The log-ratio in the exponent is capped at 20 (losses.bounded).
    """
    log_ratio = logp_ref - logp
    return bounded(log_ratio).expm1() - log_ratio


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
