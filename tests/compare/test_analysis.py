"""The numbers and the words of a study."""

import math

import numpy as np
import pytest

from gspo.compare.analysis import Interval, bootstrap, interval, measure, of_differences, paired, verdict
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
    assert math.isnan(measure(run([0.5]), "", 10)["unscored"])


def test_a_cell_that_is_shorter_than_the_window():
    row = measure(run([0.25, 0.75]), "", 10)
    assert row["reward"] == 0.5 and not row["collapsed"] and "metric" not in row


def test_a_collapse_is_a_fall_beyond_noise():
    low = [0.1] * 10
    assert measure(run([0.8] * 20 + low), "", 10)["collapsed"] is True
    assert measure(run([0.8] * 20 + low + [0.8] * 10), "", 10)["collapsed"] is False  # it came back
    assert measure(run([0.8] * 20 + low, reward_se=[0.4] * 30), "", 10)["collapsed"] is False
    assert measure(run([-0.1] * 20 + [-1.0] * 10), "", 10)["collapsed"] is True
    rare = np.random.default_rng(0).binomial(256, 0.01, 300) / 256  # ends below half of its best, by chance
    assert measure(run(rare.tolist()), "", 10)["collapsed"] is False


@pytest.mark.parametrize("columns", [{"stage": [0] * 20 + [1] * 10}, {"queries/dropped": [0] * 20 + [3] + [0] * 9}])
def test_harder_queries_are_no_collapse(columns):
    rewards = [0.8] * 20 + [0.1] * 10
    assert measure(run(rewards, **columns), "", 10)["collapsed"] is False
    later = {name: values + [values[-1]] * 10 for name, values in columns.items()}
    assert measure(run(rewards + [0.01] * 10, **later), "", 10)["collapsed"] is True  # of the best since then


@pytest.mark.parametrize("drop, collapse", [(0.5, 0.4), (0.5, 0.6), (0.3, 0.5)])
@pytest.mark.parametrize("at", [None, 30])
def test_the_guard_and_a_study_judge_alike(drop, collapse, at):
    """With any share, and where a stage begins: an alarm of the guard at the last step is a collapse of the cell."""
    config = GuardConfig(window=4, collapse=collapse, patience=1)
    rewards = np.random.default_rng(0).normal([0.8] * 30 + [0.8 * drop] * 30, 0.01).tolist()
    lines = run(rewards, stage=[float(at is not None and i >= at) for i in range(60)]).lines
    guard = Guard(config)
    levels = [guard.observe(line).metrics["guard/level"] for line in lines]
    expected = at is None and drop < collapse
    assert (levels[-1] == ALARM) == expected == measure(RunMetrics("a", lines), "", 10, config)["collapsed"]


def test_students_t_by_hand():
    three = interval([1.0, 2.0, 3.0])  # s = 1, t = 4.303
    assert (three.mean, three.n) == (2.0, 3)
    assert three.high - three.mean == pytest.approx(4.303 / math.sqrt(3))
    single = interval([1.0])
    assert single.mean == 1 and math.isnan(single.low) and not single.resolved
    assert interval([float("nan"), 1.0, 1.0]).n == 2
    assert interval([0.5, 0.9, 0.9], (0.0, 1.0)).high == 1.0  # a share
    assert interval([0.0, 1.0] * 16).high - 0.5 == pytest.approx(2.0395 * math.sqrt(8 / 31) / math.sqrt(32), abs=1e-4)


def test_differences_that_are_equal_show_no_noise():
    bounds = (-1.0, 1.0)
    for equal in ([0.25, 0.25], [0.1 + 0.2, 0.3], [-1.0] * 9):
        found = of_differences(equal, bounds)
        assert found.mean == pytest.approx(equal[0]) and math.isnan(found.low) and not found.resolved
    assert of_differences([0.0, 0.0], bounds) == Interval(0.0, 0.0, 0.0, 2)  # nothing differs
    assert of_differences([0.25, 0.5], bounds) == interval([0.25, 0.5], bounds)
    assert of_differences([], bounds).n == 0


def test_the_interval_covers_as_often_as_it_says_and_the_bootstrap_does_not():
    draw = np.random.default_rng(0)
    t = b = 0
    for _ in range(400):
        values = draw.normal(size=5)
        student = interval(values.tolist())
        t += student.low < 0 < student.high
        low, high = bootstrap(values.tolist())
        b += low < 0 < high
    assert 0.92 < t / 400 < 0.98
    assert b / 400 < 0.90


def test_pairs_are_those_that_both_have():
    assert paired({1: 0.5, 2: 0.7, 4: 1.0}, {2: 0.4, 1: 0.1, 3: 0.0}) == pytest.approx([0.4, 0.3])
    assert paired({1: math.nan}, {1: 0.0}) == []


@pytest.mark.parametrize(
    ("difference", "collapsed", "words"),
    [
        (Interval(0.04, 0.01, 0.07, 5), 0, "A is better than B by +0.040 [+0.010, +0.070] at 5 seeds."),
        (Interval(-0.04, -0.07, -0.01, 5), 0, "A is worse than B by -0.040 [-0.070, -0.010] at 5 seeds."),
        (Interval(0.04, 0.0, 0.08, 5), 0, "A against B: no difference resolvable at 5 seeds (+0.040 [+0.000, +0.080])."),
        (Interval(0.1, math.nan, math.nan, 1), 0, "A against B: 1 paired seed, no verdict."),
        (Interval(math.nan, math.nan, math.nan, 0), 0, "A against B: 0 paired seeds, no verdict."),
        (
            of_differences([0.25, 0.25], (-1.0, 1.0)),
            0,
            "A against B: +0.250 at each of 2 seeds, so no noise is seen: no verdict.",
        ),
        (Interval(-0.1, -0.3, 0.1, 3), 2, "A collapsed in 2 of 3 seeds. A against B: no difference resolvable at 3 seeds"),
    ],
)
def test_words_at_the_borders(difference, collapsed, words):
    assert verdict("A", "B", difference, collapsed, 3, "x at the end").startswith(f"x at the end: {words}")


def test_what_has_no_better_is_higher_or_lower():
    up = Interval(0.04, 0.01, 0.07, 5)
    assert "A is worse than B" in verdict("A", "B", up, 0, 5, "time/step", -1)
    assert "A is higher than B" in verdict("A", "B", up, 0, 5, "entropy", 0)
    assert "A is lower than B" in verdict("A", "B", Interval(-0.04, -0.07, -0.01, 5), 0, 5, "entropy", 0)
