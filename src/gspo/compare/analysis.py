"""The numbers of a cell: rewards at the end and on the way, whether it collapsed, and means over its steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gspo.config.training import GuardConfig
from gspo.report import numbers
from gspo.report.read import RunMetrics, is_number
from gspo.training.reward_fall import RewardFall, other_queries

GUARD = GuardConfig()
MEANS = {
    "clipped": "clip_ratio/tokens",
    "numerics": "clip_ratio/noise_only",
    "volatility": "moe/volatility",
    "mismatch_kl": "mismatch/kl",
    "entropy": "entropy",
    "seconds_train": "time/train",
}


def measure(run: RunMetrics, metric: str, last: int, guard: GuardConfig = GUARD) -> dict[str, Any]:
    """The numbers of a cell, as a row. `metric`: one beside the reward, or "". `last`: steps whose mean reward counts."""
    _, rewards = run.series("reward")
    width = min(last, len(rewards))
    smooth: list[float] = np.convolve(rewards, np.ones(width) / width, "valid").tolist() if width else []
    steps = numbers.steps(run)
    end = {key: v for line in run.lines if line.get("step", 0) == steps for key, v in line.items() if is_number(v)}
    row: dict[str, Any] = {
        "steps": steps,
        "reward": smooth[-1] if smooth else math.nan,
        "best": max(smooth, default=math.nan),  # of as many steps
        "mean": _mean(rewards),  # the area under the curve
        "tokens": next(iter(run.series("tokens_total")[1].tolist()[::-1]), math.nan),
        "seconds": float(run.series("time/step")[1].sum()),
    }
    row["fall"] = row["best"] - row["reward"]
    row["collapsed"] = collapsed(run, guard)
    row["unscored"] = unscored(run)
    row["eval_unscored"] = float(end.get("eval/failed", math.nan))  # a number, in the last step
    if metric:
        row["metric"] = float(end.get(metric, math.nan))
    return row | {name: _mean(run.series(key)[1]) for name, key in MEANS.items()}


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def collapsed(run: RunMetrics, guard: GuardConfig = GUARD) -> bool:
    """Whether the guard's test finds a collapse at the end: a fall from the best since the queries last changed."""
    test, fall, stage, rewinds = RewardFall(guard.window), None, 0.0, 0
    for line in run.lines:
        if other_queries(line, stage):
            test, fall, stage = RewardFall(guard.window), None, line.get("stage", stage)
        if line.get("guard/rewinds", rewinds) > rewinds:
            rewinds, fall = line["guard/rewinds"], None
            test.rewound()
        if is_number(line.get("reward")):
            fall = test.observe(line)
    return fall is not None and fall.share < guard.collapse


def unscored(run: RunMetrics) -> float:
    """The share of the sampled completions without a reward, which the mean reward of a step does not count."""
    _, (failed, tokens, length) = run.rows(("rollouts/failed", "tokens", "completions/mean_length"))
    # Of a step without tokens only the completions that failed are known.
    counts = np.divide(tokens, length, out=failed.copy(), where=length > 0)
    return float(failed.sum() / counts.sum()) if counts.any() else math.nan
