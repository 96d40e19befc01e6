"""Statistics of a study: one row per cell, means, paired differences, intervals, and the conclusions that they allow.

With few seeds, a bootstrap over seeds gives intervals that are too narrow: it only resamples the few observed values. So
verdicts rest on Student's t interval of the paired differences; the bootstrap interval is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gspo.config.training import GuardConfig
from gspo.report.read import RunMetrics, is_number
from gspo.rollout.statistics import student
from gspo.training.reward_fall import RewardFall, other_queries

RESAMPLES = 10_000
EQUAL = 1e-9  # relative to the largest value: smaller differences are rounding
GUARD = GuardConfig()
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
    """A mean over n values and its 95 % interval: NaN for n = 1, and for nonzero differences that are all equal."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def resolved(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0


def measure(run: RunMetrics, metric: str, last: int, guard: GuardConfig = GUARD) -> dict[str, Any]:
    """Returns the numbers of a cell.

    Args:
        metric: A metric that counts beside the reward; "" for none.
        last: Number of final steps over which the reward is averaged.
        guard: Settings of the collapse test.

    Returns:
        A row that contains, among others, `reward`: mean of the `last` steps; `best`: highest mean of as many steps; `fall`:
        `best` minus `reward`; `mean`: mean of all steps, the area under the curve; `metric`: its value at the last step, NaN
        if it has none there; `collapsed`: by the test of `guard`; `unscored`: share of the sampled completions without a
        reward; `eval_unscored`: number of held-out completions without a reward in the last step.
    """
    _, rewards = run.series("reward")
    width = min(last, len(rewards))
    smooth: list[float] = np.convolve(rewards, np.ones(width) / width, "valid").tolist() if width else []
    steps = int(max((line.get("step", 0) for line in run.lines), default=0))
    end = {key: v for line in run.lines if line.get("step", 0) == steps for key, v in line.items() if is_number(v)}
    row: dict[str, Any] = {
        "steps": steps,
        "reward": float(smooth[-1]) if len(smooth) else math.nan,
        "best": float(max(smooth)) if len(smooth) else math.nan,
        "mean": float(rewards.mean()) if len(rewards) else math.nan,
        "tokens": float(run.series("tokens_total")[1][-1]) if len(run.series("tokens_total")[1]) else math.nan,
        "seconds": float(run.series("time/step")[1].sum()),
    }
    row["fall"] = row["best"] - row["reward"]
    row["collapsed"] = collapsed(run, guard)
    row["unscored"] = unscored(run)
    row["eval_unscored"] = float(end.get("eval/failed", math.nan))
    if metric:
        row["metric"] = float(end.get(metric, math.nan))
    for name, key in MEANS.items():
        values = run.series(key)[1]
        row[name] = float(values.mean()) if len(values) else math.nan
    return row


def collapsed(run: RunMetrics, guard: GuardConfig = GUARD) -> bool:
    """Whether the final reward is below the share `guard.collapse` of its best and noise does not explain it, by the guard's
    test. The best is taken since the last change of the queries.
    """
    test, fall, stage = RewardFall(guard.window), None, 0.0
    for line in run.lines:
        if other_queries(line, stage):
            test, fall, stage = RewardFall(guard.window), None, line.get("stage", stage)
        if is_number(line.get("reward")):
            fall = test.observe(line)
    return fall is not None and fall.share < guard.collapse


def unscored(run: RunMetrics) -> float:
    """The share of the sampled completions without a reward, which the mean reward of a step does not count."""
    _, (failed, tokens, length) = run.rows(("rollouts/failed", "tokens", "completions/mean_length"))
    count = float((tokens / length).sum()) if len(length) and (length > 0).all() else math.nan
    return float(failed.sum()) / count if count else math.nan


def interval(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """Mean and Student's t interval, clipped to the natural bounds of the values."""
    x = np.asarray([v for v in values if is_number(v)], float)
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else math.nan, math.nan, math.nan, len(x))
    half = student(len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    low, high = max(x.mean() - half, bounds[0]), min(x.mean() + half, bounds[1])
    return Interval(float(x.mean()), float(low), float(high), len(x))


def of_differences(values: Sequence[float], bounds: tuple[float, float]) -> Interval:
    """`interval` for paired differences. If all are equal and not 0, as may happen with few held-out prompts, the noise is
    unknown rather than zero, so the mean gets no interval.
    """
    found = interval(values, bounds)
    return Interval(found.mean, math.nan, math.nan, found.n) if noiseless(values) else found


def noiseless(values: Sequence[float] | np.ndarray) -> bool:
    """Whether the values are all equal, up to rounding, and not 0."""
    x = np.asarray(values, float)
    return bool(x.any() and np.ptp(x) <= EQUAL * np.abs(x).max())


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean; too narrow for few values."""
    x = np.asarray(values, float)
    means = np.random.default_rng(seed).choice(x, (RESAMPLES, len(x))).mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def paired(a: dict[int, float], b: dict[int, float]) -> list[float]:
    """a - b for the seeds that both have."""
    return [a[seed] - b[seed] for seed in sorted(a) if seed in b and is_number(a[seed]) and is_number(b[seed])]


def spell(value: Interval, form: str = ".3f", short: bool = False) -> str:
    """Formats an interval; with `short`, only the mean. "" if there is none."""
    if math.isnan(value.mean):
        return ""
    mean = format(value.mean, form)
    return mean if short or math.isnan(value.low) else f"{mean} [{value.low:{form}}, {value.high:{form}}]"


def in_points(difference: Interval) -> str:
    """Formats a difference of two shares, in percentage points."""
    mean, low, high = (100 * x for x in (difference.mean, difference.low, difference.high))
    return f"{spell(Interval(mean, low, high, difference.n), '+z.1f')} points"


def verdict(
    name: str,
    baseline: str,
    difference: Interval,
    collapsed: int,
    of: int,
    measure: str = "reward",
    sign: int = 1,
    unit: str = "seed",
    share: bool = False,
) -> str:
    """Returns in words what the numbers allow to conclude.

    Args:
        difference: `name` - `baseline`, paired by `unit`.
        collapsed: Number of units in which `name` collapsed, out of `of`.
        measure: What was measured.
        sign: 1 if more of it is better, -1 if less is, 0 if neither.
        share: Whether the measure is a share, whose differences are given in percentage points.
    """
    words = f"{name} collapsed in {collapsed} of {of} {unit}s. " if collapsed else ""
    words = f"{measure}: {words}"
    if difference.n < 2:
        return words + f"{name} against {baseline}: {difference.n} paired {unit}{'s' * (difference.n != 1)}, no verdict."
    span = in_points(difference) if share else spell(difference, "+z.3f")
    if math.isnan(difference.low):
        return (
            words + f"{name} against {baseline}: {span} at each of {difference.n} {unit}s, so no noise is seen: no verdict."
        )
    if not difference.resolved:
        return words + f"{name} against {baseline}: no difference resolvable at {difference.n} {unit}s ({span})."
    more = difference.mean > 0
    relation = ("better" if more == (sign > 0) else "worse") if sign else ("higher" if more else "lower")
    return words + f"{name} is {relation} than {baseline} by {span} at {difference.n} {unit}s."
