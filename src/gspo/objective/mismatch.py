"""Mismatch between sampler (mu) and trainer (pi) on the same tokens at the same weights: numerical differences only."""

from __future__ import annotations

from torch import Tensor

from gspo.objective.algorithms import Algorithm
from gspo.objective.clip_range import NUMERICS
from gspo.objective.completions import Completions
from gspo.objective.divergence import k3
from gspo.objective.losses import sequence_ratio

# KL(mu || pi) in nats per token above which a token-level clip needs recomputed log-probabilities. With those of an int4
# sampler (6e-5 and more) GRPO broke down in 6 of 6 runs, though numerics clipped .1 % of tokens (lab/log.md, 2026-11-27).
SINGLE = 1e-5


def mismatch(logp: Tensor, logp_mu: Tensor, y: Completions) -> dict[str, float]:
    """Metrics of log pi and log mu [N] of the sampled tokens, both at the weights that sampled them.

    Returns:
        ratio/noise_floor: Standard deviation of s_i - 1.
        mismatch/kl: k3 estimate of KL(mu || pi), nats per token.
        mismatch/prob_mean, prob_max: Mean and maximum of |pi - mu|.
        mismatch/ratio_over_2: Share of tokens with pi/mu above 2 or below 1/2.
        mismatch/weight_mean, weight_std: Mean and standard deviation of pi/mu.
        mismatch/ess: Effective sample size of these weights, as a share of N.
    """
    logp, logp_mu = logp.double(), logp_mu.double()
    gap = (logp.exp() - logp_mu.exp()).abs()
    w = (logp - logp_mu).exp()
    return {
        "ratio/noise_floor": std(sequence_ratio(logp, logp_mu, y) - 1),
        "mismatch/kl": float(k3(logp_mu, logp).mean()),
        "mismatch/prob_mean": float(gap.mean()),
        "mismatch/prob_max": float(gap.max()),
        "mismatch/ratio_over_2": float(((w > 2) | (w < 0.5)).double().mean()),
        "mismatch/weight_mean": float(w.mean()),
        "mismatch/weight_std": std(w),
        "mismatch/ess": float(w.sum() ** 2 / (w**2).sum() / len(w)),
    }


def noise_is_tolerable(row: Algorithm, clipped: float, kl: float) -> bool:
    """Whether the ratios of `row` may divide by log-probabilities with this much numerical noise.

    A sequence-level ratio averages the errors of its tokens, a token-level ratio does not. clipped: share of the tokens that
    the noise clips. kl: the metric `mismatch/kl`.
    """
    single = row.level == "token" and row.epsilon is not None
    return clipped <= NUMERICS and not (single and kl > SINGLE)


def std(x: Tensor) -> float:
    """Sample standard deviation, 0 for fewer than two values."""
    return float(x.std()) if len(x) > 1 else 0.0
