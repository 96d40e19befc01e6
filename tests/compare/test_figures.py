import numpy as np
import pytest

from gspo.compare.figures import FLOOR, band, points, setting_charts
from gspo.report.read import RunMetrics


def run(*rows):
    return RunMetrics("r", [{"step": i, **row} for i, row in enumerate(rows, 1)])


def test_the_axes_of_a_curve():
    made = run({"y": 1, "tokens_total": 10, "time/step": 2}, {"tokens_total": 30, "time/step": 3}, {"y": 5, "time/step": 4})
    for x, at in (("step", [1, 3]), ("seconds", [2, 9])):
        found, values = points(made, x, "y")
        assert (found.tolist(), values.tolist()) == (at, [1, 5])
    found, values = points(made, "tokens_total", "y")  # only where both are known
    assert (found.tolist(), values.tolist()) == ([10], [1])


def test_a_band_by_hand():
    """Two seeds, the second of which ends earlier: the band stands where both have values."""
    grid, mean, low, high = band([run({"y": 0}, {"y": 2}, {"y": 9}), run({"y": 4}, {"y": 6})], "step", "y", log=False)
    assert (grid[0], grid[-1]) == (1, 2)
    assert (mean[0], low[0], high[0]) == (2, 0, 4) and (mean[-1], low[-1], high[-1]) == (4, 2, 6)
    assert band([run({"y": 1}), run({"x": 1})], "step", "y", log=False) is None
    assert band([], "step", "y", log=False) is None


def test_a_logarithmic_band_has_a_geometric_mean_and_a_floor():
    _, mean, low, _ = band([run({"y": 0.1}, {"y": 0}), run({"y": 0.001}, {"y": FLOOR})], "step", "y", log=True)
    assert mean[0] == pytest.approx(0.01) and (mean[-1], low[-1]) == (pytest.approx(FLOOR), FLOOR)


def test_a_setting_has_the_figures_that_it_has_numbers_for():
    rows = [{"reward": r, "entropy": 1.0, "clip_ratio/tokens": 0.0} for r in np.linspace(0, 1, 5)]
    charts = setting_charts({"GSPO": [run(*rows), run(*rows)], "GRPO": [run(*rows)]})
    assert [chart.name for chart in charts] == ["reward", "entropy"]  # no tokens, no seconds, and nothing was clipped
    for chart in charts:
        assert [(mark.style, mark.label) for mark in chart.marks] == [
            ("band", ""), ("line", "GSPO"), ("band", ""), ("line", "GRPO")
        ]  # fmt: skip


def test_a_caption_says_where_lines_end_and_what_stands_on_the_floor():
    rows = [{"reward": 0.5, "moe/volatility": v, "clip_ratio/tokens": 0.1} for v in (1e-7, 0.01, 0.02)]
    told = {one.name: one.caption for one in setting_charts({"GSPO": [run(*rows), run(*rows[:2])]})}
    assert all("as far as all seeds have values." in caption for caption in told.values())
    assert told["volatility"].endswith("What is below 0.001 % stands there.") and "stands there" not in told["clipped"]
