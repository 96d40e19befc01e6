"""What is known of a metric by its name."""

import math

import pytest

from gspo.report.read import RunMetrics
from gspo.study.measures import better, bounds


@pytest.mark.parametrize(
    ("metric", "sign"),
    [
        ("eval/accuracy", 1), ("reward", 1), ("reward/exact", 1), ("eval/reward/exact", 1), ("reward_std", 0),
        ("entropy", 0),
        ("completions/mean_length", 0), ("clip_ratio/tokens", 0), ("mismatch/kl", -1), ("mismatch/ess", 1),
        ("mismatch/weight_mean", 0), ("time/step", -1), ("rollouts/failed", -1), ("kl", 0),
    ],
)  # fmt: skip
def test_whether_more_is_better(metric, sign):
    assert better(metric) == sign


def run(low, high):
    return RunMetrics("a", [{"step": 1, "reward_min": low, "reward_max": high}])


def test_bounds_are_those_of_shares_and_of_rewards_from_0_to_1():
    assert bounds("eval/accuracy", []) == bounds("clip_ratio/tokens", []) == (0, 1)
    assert bounds("entropy", [run(0.0, 1.0)]) == (-math.inf, math.inf)
    assert bounds("reward", [run(0.0, 0.5), run(0.0, 1.0)]) == (0, 1)
    for other in ([], [run(0.0, 1.0), run(-1.0, 1.0)], [run(0.0, 2.0)], [run(0.0, 0.5)], [RunMetrics("old", [{"step": 1}])]):
        assert bounds("reward", other) == (-math.inf, math.inf)
