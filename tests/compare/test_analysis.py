import math

import numpy as np
import pytest

from gspo.compare.analysis import measure
from gspo.config.training import GuardConfig
from gspo.report.read import RunMetrics
from gspo.training.guard import ALARM, Guard


def run(rewards, **columns):
    lines = [{"step": i, "reward": r, "time/step": 2.0, "tokens_total": 10 * i} for i, r in enumerate(rewards, 1)]
    for name, values in columns.items():
        for line, value in zip(lines, values):
            line[name] = value
    return RunMetrics("a", lines)


def test_a_cell_by_hand():
    metrics = run(
        [0.0, 0.8, 0.8, 0.2, 0.2],
        **{"clip_ratio/tokens": [0.1, 0.1, 0.1, 0.3, 0.4], "eval/accuracy": [0.5, None, 0.9, None, 0.6]},
    )
    row = measure(metrics, "eval/accuracy", 2)
    assert (row["steps"], row["tokens"], row["seconds"]) == (5, 50, 10)
    assert row["reward"] == pytest.approx(0.2) and row["best"] == pytest.approx(0.8)
    assert row["mean"] == pytest.approx(0.4) and row["fall"] == pytest.approx(0.6)
    assert row["metric"] == 0.6 and row["clipped"] == pytest.approx(0.2) and math.isnan(row["volatility"])


def test_what_was_evaluated_before_the_end_is_not_of_the_end():
    """The sampler may be lost in the last step, and the guard may stop a run between two evaluations."""
    early = run([0.2, 0.8, 0.1], **{"eval/accuracy": [None, 0.9, None], "eval/failed": [None, 3.0, None]})
    row = measure(early, "eval/accuracy", 2)
    assert math.isnan(row["metric"]) and math.isnan(row["eval_unscored"])


def test_completions_without_a_reward_are_counted():
    columns = {"rollouts/failed": [3.0, 1.0], "tokens": [80.0, 40.0], "completions/mean_length": [10.0, 5.0]}
    row = measure(run([0.5, 0.5], **columns, **{"eval/failed": [4.0, 2.0]}), "", 10)
    assert row["unscored"] == 4 / 16 and row["eval_unscored"] == 2
    columns |= {"tokens": [80.0, 0.0], "completions/mean_length": [10.0, 0.0]}  # in the second step all failed at once
    assert measure(run([0.5, 0.5], **columns), "", 10)["unscored"] == 4 / 9
    row = measure(run([0.25, 0.75]), "", 10)  # shorter than the window
    assert row["reward"] == 0.5 and not row["collapsed"] and "metric" not in row and math.isnan(row["unscored"])


def test_a_collapse_is_a_fall_beyond_noise():
    low = [0.1] * 10
    assert measure(run([0.8] * 20 + low), "", 10)["collapsed"] is True
    assert measure(run([0.8] * 20 + low + [0.8] * 10), "", 10)["collapsed"] is False  # it came back
    assert measure(run([0.8] * 20 + low, reward_se=[0.4] * 30), "", 10)["collapsed"] is False
    assert measure(run([-0.1] * 20 + [-1.0] * 10), "", 10)["collapsed"] is True
    turned = run([0.8] * 20 + low + [0.8] * 2, **{"guard/rewinds": [0] * 30 + [1] * 2})  # back to a good checkpoint
    assert measure(turned, "", 10)["collapsed"] is False
    rare = np.random.default_rng(0).binomial(256, 0.01, 300) / 256  # ends below half of its best, by chance
    assert measure(run(rare.tolist()), "", 10)["collapsed"] is False


@pytest.mark.parametrize("columns", [{"stage": [0] * 20 + [1] * 10}, {"queries/dropped": [0] * 20 + [3] + [0] * 9}])
def test_harder_queries_are_no_collapse(columns):
    rewards = [0.8] * 20 + [0.1] * 10
    assert measure(run(rewards, **columns), "", 10)["collapsed"] is False
    later = {name: values + [values[-1]] * 10 for name, values in columns.items()}
    assert measure(run(rewards + [0.01] * 10, **later), "", 10)["collapsed"] is True  # of the best since then


@pytest.mark.parametrize("drop, collapse, at", [(0.5, 0.4, None), (0.5, 0.6, None), (0.3, 0.5, 30)])
def test_the_guard_and_a_study_judge_alike(drop, collapse, at):
    """With any share, and where a stage begins: an alarm of the guard at the last step is a collapse of the cell."""
    config = GuardConfig(window=4, collapse=collapse, patience=1)
    rewards = np.random.default_rng(0).normal([0.8] * 30 + [0.8 * drop] * 30, 0.01).tolist()
    lines = run(rewards, stage=[float(at is not None and i >= at) for i in range(60)]).lines
    guard = Guard(config)
    levels = [guard.observe(line).metrics["guard/level"] for line in lines]
    expected = at is None and drop < collapse
    assert (levels[-1] == ALARM) == expected == measure(RunMetrics("a", lines), "", 10, config)["collapsed"]
