"""What is known of a metric by its name: whether more is better, and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatch

from gspo.report.read import RunMetrics

UNBOUNDED, NO_SIGN = (-math.inf, math.inf), (0.0, math.inf)
# The first pattern that a name matches decides. 1: more is better, -1: less is. All other metrics have no better.
BETTER = (
    ("eval/failed", -1), ("eval/accuracy", 1), ("eval/win_rate", 1), ("eval/reward*", 1), ("reward_*", 0), ("reward*", 1),
    ("rollouts/failed", -1), ("groups/dropped", -1), ("scoring/*/failed", -1), ("updates/skipped", -1),
    ("groups/teaching", 1),
    ("mismatch/ess", 1), ("mismatch/weight_*", 0), ("mismatch/*", -1), ("value/explained", 1), ("value/loss", -1),
    ("moe/sampler_agreement", 1), ("tokens_per_second", 1), ("time/*", -1),
)  # fmt: skip
SHARES = (
    "*/accuracy*", "*/win_rate", "clip_ratio/*", "*/clipped_ratio", "*/repetition", "frac_*", "skipped/*", "mismatch/ess",
    "mismatch/beyond_2x", "mismatch/prob_*", "moe/volatility", "moe/tokens_changed", "moe/sampler_agreement",
    "moe/overruled", "refill/signal", "groups/teaching", "correction/zero", "rollouts/in_parts",
)  # fmt: skip
# Counts, times, sizes, spreads and averages of what has no sign.
NEVER_NEGATIVE = (
    "step", "*seconds*", "time/*", "*tokens*", "reward_se", "reward_std*", "rollouts/failed", "turns/*", "trajectories/*",
    "groups/dropped", "stage*", "queries/*", "refill/*", "*/mean_length", "guard/level", "correction/weight_*", "ratio/*",
    "mismatch/kl", "mismatch/weight_*", "staleness", "kl", "kl_ref", "entropy", "value/loss", "grad_norm", "lr", "updates*",
    "moe/max_violation", "moe/aux_loss", "moe/router_entropy", "clip/*", "engines/*", "sync/*", "eval/failed",
    "eval/prompts",
)  # fmt: skip


def better(metric: str) -> int:
    """1 where more is better, -1 where less is, 0 where neither."""
    return next((sign for pattern, sign in BETTER if fnmatch(metric, pattern)), 0)


def bounds(metric: str, runs: Iterable[RunMetrics]) -> tuple[float, float]:
    """What a value cannot go beyond: 0 and 1 of a share, 0 of what has no sign, and 0 and 1 of rewards, or of one reward
    function, where those of the runs reach from 0 to 1 and no further.
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
