"""What stands beside the lines of a figure: bands, labels, the clip range, the time of steps."""

import pytest

from tests.report.drawing import figure, of, write


def test_a_range_that_adapts_is_that_of_each_step(tmp_path):
    ranges = [3e-4, 0.1, 5e-4]
    ratio = {"ratio/mean": 1.0, "ratio/std": 0.01, "ratio/noise_floor": 1e-7}
    folder = write(
        tmp_path / "run",
        [ratio | {"step": s, "clip/epsilon": e, "clip/epsilon_high": 2 * e} for s, e in enumerate(ranges, 1)],
    )
    ends = [mark.y.tolist() for name in ("ratio", "noise") for mark in of(figure(name, folder), "limit")]
    assert ends == [[-e for e in ranges], [2 * e for e in ranges], ranges]


def test_the_band_of_rewards_ends_where_they_do(tmp_path):
    rows = [(0.1, 0.3, 0.0, 1.0), (0.5, 0.7, -0.1, 0.8), (0.5, 0.1, 0.0, 1.0)]
    keys = ("reward", "reward_std", "reward_min", "reward_max")
    lines = [dict(zip(keys, row)) | {"step": s} for s, row in enumerate(rows, 1)]
    (band,) = of(figure("reward", write(tmp_path / "run", lines)), "band")
    assert band.low.tolist() == pytest.approx([0.0, -0.1, 0.4]) and band.y.tolist() == pytest.approx([0.4, 0.8, 0.6])


def test_alarms_and_stages_stand_at_their_steps(tmp_path):
    lines = [{"step": s, "reward": 0.5, "guard/level": 2 * (s == 2), "stage": int(s > 2)} for s in (1, 2, 3)]
    chart = figure("reward", write(tmp_path / "run", lines))
    assert [mark.x.tolist() for style in ("alarm", "stage") for mark in of(chart, style)] == [[2], [2.5]]


def evaluated(folder, *accuracies):
    """The figure of a run with these accuracies and the ends of their intervals."""
    keys = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    return figure("accuracy", write(folder, [dict(zip(keys, v)) | {"step": s} for s, v in enumerate(accuracies)]))


def test_labels_stand_clear_of_the_error_bars_and_of_the_line(tmp_path):
    chart = evaluated(tmp_path / "run", (0.3, 0.1, 0.5), (0.6, 0.3, 0.9))
    assert chart.texts == [(0, pytest.approx(10), True, "30\u00a0%"), (1, pytest.approx(90), False, "60\u00a0%")]
    (bars,) = of(chart, "bars")
    assert (*bars.low, *bars.y) == pytest.approx((10, 30, 50, 90))
    assert evaluated(tmp_path / "one", (0.3, 0.1, 0.5)).texts == [(0, pytest.approx(10), True, "30\u00a0%")]


def test_many_evaluations_are_a_band(tmp_path):
    many, few = (evaluated(tmp_path / str(n), *[(0.5, 0.4, 0.6)] * n) for n in (40, 20))
    assert of(many, "band") and not of(many, "bars", "dots") and of(few, "bars") and of(few, "dots")


def test_a_step_beyond_the_axis_is_told(tmp_path):
    for longest in (1.2, 60.0):
        lines = [{"step": s, "time/sample": 0.5, "time/train": longest - 0.5 if s == 70 else 0.5} for s in range(1, 101)]
        chart = figure("time", write(tmp_path / str(longest), lines))
        sampling, training = of(chart, "area")
        assert (training.low == sampling.y).all() and training.y.max() == longest
        beyond = longest > chart.top
        assert beyond == (longest == 60) == ("The longest took 60 s, which is beyond the figure." in chart.caption)
