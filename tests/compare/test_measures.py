"""What is known of a metric by its name."""

import math
import re
from pathlib import Path

from gspo.compare.measures import UNBOUNDED, better, bounds
from gspo.report.read import RunMetrics

ROOT = Path(__file__).parents[2]


def test_whether_more_is_better():
    for sign, metrics in (
        (1, ("eval/accuracy", "reward", "reward/exact", "eval/reward/exact", "mismatch/ess")),
        (0, ("reward_std", "entropy", "completions/mean_length", "clip_ratio/tokens", "mismatch/weight_mean", "kl")),
        (-1, ("mismatch/kl", "time/step", "rollouts/failed")),
    ):
        assert [better(metric) for metric in metrics] == [sign] * len(metrics)


def run(low, high):
    return RunMetrics("a", [{"step": 1, "reward_min": low, "reward_max": high}])


def test_bounds_are_those_of_shares_and_of_rewards_from_0_to_1():
    assert bounds("eval/accuracy", []) == bounds("clip_ratio/tokens", []) == (0, 1)
    assert bounds("reward", [run(0.0, 0.5), run(0.0, 1.0)]) == (0, 1)
    assert bounds("time/step", []) == bounds("entropy", []) == (0, math.inf) and bounds("loss", []) == UNBOUNDED
    for other in ([], [run(0.0, 1.0), run(-1.0, 1.0)], [run(0.0, 2.0)], [run(0.0, 0.5)], [RunMetrics("old", [{"step": 1}])]):
        assert bounds("reward", other) == UNBOUNDED


def test_a_reward_function_has_bounds_of_its_own():
    lines = [{"step": 1, "reward_min": -1.0, "reward_max": 1.0, "reward_min/exact": 0.0, "reward_max/exact": 1.0}]
    runs = [RunMetrics("a", lines)]
    assert bounds("reward/exact", runs) == bounds("eval/reward/exact", runs) == (0, 1)
    assert bounds("reward", runs) == bounds("reward/style", runs) == bounds("rewards", runs) == UNBOUNDED


def test_the_documented_unit_of_a_metric_is_that_of_its_bounds():
    """Every metric in the table of docs/metrics.md: a share ends at 0 and 1, and what has no sign at 0."""
    table = (ROOT / "docs" / "metrics.md").read_text().split("Details that matter", 1)[0]
    rows = [[part.strip() for part in line.split(" | ")] for line in table.splitlines() if line.startswith("| `")]
    signed = ("reward", "loss", "teacher/kl", "value/explained", "guard/signals", "moe/volatility_by_layer")
    assert len(rows) > 60
    for names, unit, *_ in rows:
        metrics = re.findall(r"`([^`]+)`", names)
        units = unit.split(", ") if unit.count(", ") == len(metrics) - 1 else [unit] * len(metrics)
        for metric, of in zip(metrics, units):
            if metric.removeprefix("eval/").startswith(("reward/", "reward_min", "reward_max", "scoring/")):
                continue
            if metric.removeprefix("eval/") not in signed:
                expected = (0, 1) if of.startswith(("share", "probability")) else (0, math.inf)
                assert bounds(metric, []) == expected, metric
