"""From the runs of a study to numbers: one row a cell, means, paired differences, intervals, and what they allow to say.

With few seeds a bootstrap over seeds gives intervals that are too narrow: of 5 values it knows nothing but the 5. So the
interval that a verdict rests on is Student's t of the paired differences; the bootstrap's stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gspo.report.read import RunMetrics, is_number

RESAMPLES = 10_000
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom; beyond, the normal's 1.96 is near enough.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
     2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
COLLAPSED = 0.5  # of the running best
MEANS = {
    "clipped": "clip_ratio/tokens",
    "numerics": "clip_ratio/numerics",
    "volatility": "moe/volatility",
    "mismatch_kl": "mismatch/kl",
    "entropy": "entropy",
    "seconds_train": "time/train",
}


@dataclass(frozen=True)
class Interval:
    """A mean over n values, and its 95 % interval (nan for n = 1)."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def resolved(self) -> bool:
        """Whether it leaves 0 out."""
        return self.low > 0 or self.high < 0


def measure(run: RunMetrics, metric: str, last: int) -> dict[str, Any]:
    """A cell's numbers. reward: mean of the `last` steps. best: the highest mean of as many steps. fall: how far the reward
    ends below it. mean: of all steps, the area under the curve. metric: its last value. collapsed: whether the reward
    ends below half of its best.
    """
    _, rewards = run.series("reward")
    width = min(last, len(rewards))
    smooth: list[float] = np.convolve(rewards, np.ones(width) / width, "valid").tolist() if width else []
    row: dict[str, Any] = {
        "steps": int(max((line.get("step", 0) for line in run.lines), default=0)),
        "reward": float(smooth[-1]) if len(smooth) else math.nan,
        "best": float(max(smooth)) if len(smooth) else math.nan,
        "mean": float(rewards.mean()) if len(rewards) else math.nan,
        "tokens": float(run.series("tokens_total")[1][-1]) if len(run.series("tokens_total")[1]) else math.nan,
        "seconds": float(run.series("time/step")[1].sum()),
    }
    row["fall"] = row["best"] - row["reward"]
    row["collapsed"] = bool(row["best"] > 0 and row["reward"] < COLLAPSED * row["best"])
    if metric:
        values = run.series(metric)[1]
        row["metric"] = float(values[-1]) if len(values) else math.nan
    for name, key in MEANS.items():
        values = run.series(key)[1]
        row[name] = float(values.mean()) if len(values) else math.nan
    return row


def interval(values: Sequence[float]) -> Interval:
    """Mean and Student's t interval."""
    x = np.asarray([v for v in values if is_number(v)], float)
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else math.nan, math.nan, math.nan, len(x))
    half = (T[len(x) - 2] if len(x) - 2 < len(T) else 1.96) * x.std(ddof=1) / math.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of the mean, 95 %: too narrow for few values."""
    x = np.asarray(values, float)
    means = np.random.default_rng(seed).choice(x, (RESAMPLES, len(x))).mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def paired(a: dict[int, float], b: dict[int, float]) -> list[float]:
    """a - b for the seeds that both have."""
    return [a[seed] - b[seed] for seed in sorted(a) if seed in b and is_number(a[seed]) and is_number(b[seed])]


def verdict(name: str, baseline: str, difference: Interval, collapsed: int, of: int) -> str:
    """What the numbers allow to say, in words. difference: `name` - `baseline`, paired by seed."""
    words = f"{name} collapsed in {collapsed} of {of} seeds. " if collapsed else ""
    if difference.n < 2:
        return words + f"{name} against {baseline}: {difference.n} paired seed{'s' * (difference.n != 1)}, no verdict."
    span = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    if not difference.resolved:
        return words + f"{name} against {baseline}: no difference resolvable at {difference.n} seeds ({span})."
    return (
        words
        + f"{name} is {'better' if difference.mean > 0 else 'worse'} than {baseline} by {span} at {difference.n} seeds."
    )
