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

from gspo.config.training import GuardConfig
from gspo.report.read import RunMetrics, is_number
from gspo.rollout.statistics import student
from gspo.training.reward_fall import RewardFall, other_queries

RESAMPLES = 10_000
EQUAL = 1e-9  # of the largest value: by how much rounding may tell equal ones apart
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
    """A mean over n values, and its 95 % interval: nan for n = 1, and for differences other than 0 that are all equal."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def resolved(self) -> bool:
        """Whether it leaves 0 out."""
        return self.low > 0 or self.high < 0


def measure(run: RunMetrics, metric: str, last: int, guard: GuardConfig = GUARD) -> dict[str, Any]:
    """A cell's numbers. reward: mean of the `last` steps. best: the highest mean of as many steps. fall: how far the reward
    ends below it. mean: of all steps, the area under the curve. metric: its value at the last step, nan where it has none
    there. collapsed: by the test of `guard`. unscored: share of the completions sampled that got no reward; eval_unscored:
    held-out ones of the last step.
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
    """Whether the reward ends below the share guard.collapse of its best and noise does not explain it, by the guard's test:
    the best since the queries were last changed.
    """
    test, fall, stage = RewardFall(guard.window), None, 0.0
    for line in run.lines:
        if other_queries(line, stage):
            test, fall, stage = RewardFall(guard.window), None, line.get("stage", stage)
        if is_number(line.get("reward")):
            fall = test.see(line)
    return fall is not None and fall.share < guard.collapse


def unscored(run: RunMetrics) -> float:
    """The share of the completions sampled that got no reward, which no reward of a step counts."""
    _, (failed, tokens, length) = run.rows(("rollouts/failed", "tokens", "completions/mean_length"))
    count = float((tokens / length).sum()) if len(length) and (length > 0).all() else math.nan
    return float(failed.sum()) / count if count else math.nan


def interval(values: Sequence[float], bounds: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """Mean and Student's t interval, within the bounds that the values have by their nature."""
    x = np.asarray([v for v in values if is_number(v)], float)
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else math.nan, math.nan, math.nan, len(x))
    half = student(len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    low, high = max(x.mean() - half, bounds[0]), min(x.mean() + half, bounds[1])
    return Interval(float(x.mean()), float(low), float(high), len(x))


def of_differences(values: Sequence[float], bounds: tuple[float, float]) -> Interval:
    """The same for paired differences. Where they are all equal, as those of a few held-out prompts may be, no noise is
    seen, which is not none: the mean has no interval, unless nothing differs.
    """
    found = interval(values, bounds)
    return Interval(found.mean, math.nan, math.nan, found.n) if noiseless(values) else found


def noiseless(values: Sequence[float] | np.ndarray) -> bool:
    """Whether values other than 0 are all equal, but for rounding."""
    x = np.asarray(values, float)
    return bool(x.any() and np.ptp(x) <= EQUAL * np.abs(x).max())


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap of the mean, 95 %: too narrow for few values."""
    x = np.asarray(values, float)
    means = np.random.default_rng(seed).choice(x, (RESAMPLES, len(x))).mean(1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def paired(a: dict[int, float], b: dict[int, float]) -> list[float]:
    """a - b for the seeds that both have."""
    return [a[seed] - b[seed] for seed in sorted(a) if seed in b and is_number(a[seed]) and is_number(b[seed])]


def spell(value: Interval, form: str = ".3f", short: bool = False) -> str:
    """An interval in figures; `short`: the mean alone. Empty where there is none."""
    if math.isnan(value.mean):
        return ""
    mean = format(value.mean, form)
    return mean if short or math.isnan(value.low) else f"{mean} [{value.low:{form}}, {value.high:{form}}]"


def in_points(difference: Interval) -> str:
    """A difference of two shares in figures, in percentage points."""
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
    """What the numbers allow to say, in words. difference: `name` - `baseline`, paired by `unit`. measure: what was
    measured, a share that is told in percent or not; sign: 1 where more of it is better, -1 where less is, 0 where neither.
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
