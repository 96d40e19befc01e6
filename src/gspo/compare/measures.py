"""What the name of a metric implies: whether more is better, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatch

from gspo.report.read import RunMetrics

UNBOUNDED, NO_SIGN = (-math.inf, math.inf), (0.0, math.inf)
# The first matching pattern decides. 1: more is better, -1: less is better, 0: neither, as for all other metrics.
BETTER = (
    ("eval/failed", -1), ("eval/accuracy", 1), ("eval/reward*", 1), ("reward_*", 0), ("reward*", 1),
    ("rollouts/failed", -1), ("groups/dropped", -1), ("scoring/*/failed", -1), ("updates/skipped", -1),
    ("groups/with_signal", 1),
    ("mismatch/ess", 1), ("mismatch/weight_*", 0), ("mismatch/*", -1), ("value/explained", 1), ("value/loss", -1),
    ("moe/sampler_agreement", 1), ("tokens_per_second", 1), ("time/*", -1),
)  # fmt: skip
SHARES = (
    "*/accuracy*", "clip_ratio/*", "*/clipped_ratio", "*/repetition", "frac_*", "no_signal/*", "mismatch/ess",
    "mismatch/ratio_over_2", "mismatch/prob_*", "moe/volatility", "moe/tokens_changed", "moe/sampler_agreement",
    "moe/overruled", "dynamic_sampling/signal", "groups/with_signal", "correction/zero", "correction/low",
    "correction/high", "opsm/masked", "marked/tokens", "rollouts/multi_version", "engines/draft_acceptance",
)  # fmt: skip
# Counts, times, sizes, spreads, and averages of nonnegative values.
NEVER_NEGATIVE = (
    "step", "*seconds*", "time/*", "*tokens*", "reward_se", "reward_std*", "rollouts/failed", "turns/*", "trajectories/*",
    "groups/dropped", "stage*", "queries/*", "dynamic_sampling/*",
    "*/mean_length", "guard/level", "guard/rewinds", "correction/*", "ratio/*",
    "mismatch/kl", "mismatch/weight_*", "staleness", "kl", "kl_ref", "entropy", "value/loss", "grad_norm", "lr", "updates*",
    "moe/max_violation", "moe/aux_loss", "moe/router_entropy", "clip/*", "engines/*", "sync/*", "eval/failed",
    "eval/prompts",
)  # fmt: skip


def better(metric: str) -> int:
    """1 if more of the metric is better, -1 if less is, 0 if neither."""
    return next((sign for pattern, sign in BETTER if fnmatch(metric, pattern)), 0)


def bounds(metric: str, runs: Iterable[RunMetrics]) -> tuple[float, float]:
    """The bounds of a metric: 0 and 1 for a share, 0 and infinity for a nonnegative one. Rewards, also of a single function,
    are bounded by 0 and 1 if those of the runs range exactly from 0 to 1.
    """
    if any(fnmatch(metric, pattern) for pattern in SHARES):
        return 0.0, 1.0
    if any(fnmatch(metric, pattern) for pattern in NEVER_NEGATIVE):
        return NO_SIGN
    kind, slash, function = metric.removeprefix("eval/").partition("/")
    if kind != "reward":
        return UNBOUNDED
    ends = [run.series(f"{end}{slash}{function}")[1] for run in runs for end in ("reward_min", "reward_max")]
    if not ends or not all(len(values) for values in ends):
        return UNBOUNDED
    low, high = min(float(values.min()) for values in ends), max(float(values.max()) for values in ends)
    return (0.0, 1.0) if (low, high) == (0.0, 1.0) else UNBOUNDED
