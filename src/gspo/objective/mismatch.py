"""How far the sampler (mu) and the trainer (pi) disagree about the same tokens at the same weights: numerics alone."""

from __future__ import annotations

from torch import Tensor

from gspo.objective.algorithms import Algorithm
from gspo.objective.clip_range import NUMERICS
from gspo.objective.completions import Completions
from gspo.objective.divergence import k3
from gspo.objective.losses import sequence_ratio

# KL(mu || pi), nats a token, above which a clip of single tokens wants recomputed likelihoods: on those of an int4 sampler,
# 6e-5 and more, GRPO broke down in 6 of 6 runs, though numerics clipped .1 % of the tokens (lab/log.md, 2026-11-27).
SINGLE = 1e-5


def mismatch(logp: Tensor, logp_mu: Tensor, y: Completions) -> dict[str, float]:
    """Metrics of log pi and log mu [N] of the sampled tokens, taken at the weights that sampled them.

    ratio/noise_floor: standard deviation of s_i - 1. mismatch/kl: k3 estimate of KL(mu || pi), nats a token.
    mismatch/prob_mean, prob_max: |pi - mu|. mismatch/beyond_2x: share of tokens whose pi/mu is above 2 or below 1/2.
    mismatch/weight_mean, weight_std: of pi/mu. mismatch/ess: effective sample size of these weights, as a share of N.
    """
    logp, logp_mu = logp.double(), logp_mu.double()
    gap = (logp.exp() - logp_mu.exp()).abs()
    w = (logp - logp_mu).exp()
    return {
        "ratio/noise_floor": std(sequence_ratio(logp, logp_mu, y) - 1),
        "mismatch/kl": float(k3(logp_mu, logp).mean()),
        "mismatch/prob_mean": float(gap.mean()),
        "mismatch/prob_max": float(gap.max()),
        "mismatch/beyond_2x": float(((w > 2) | (w < 0.5)).double().mean()),
        "mismatch/weight_mean": float(w.mean()),
        "mismatch/weight_std": std(w),
        "mismatch/ess": float(w.sum() ** 2 / (w**2).sum() / len(w)),
    }


def noise_is_tolerable(row: Algorithm, clipped: float, kl: float) -> bool:
    """Whether ratios of `row` may divide by likelihoods that numerics alone have moved. clipped: share of the tokens that
    they clip. kl: `mismatch/kl`. A ratio of whole completions averages the errors of single tokens, others do not.
    """
    single = row.level == "token" and row.epsilon is not None
    return clipped <= NUMERICS and not (single and kl > SINGLE)


def std(x: Tensor) -> float:
    """Sample standard deviation, 0 for fewer than two values."""
    return float(x.std()) if len(x) > 1 else 0.0
