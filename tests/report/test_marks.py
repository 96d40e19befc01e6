"""What stands beside the lines of a figure: bands, labels, the clip range, the time of steps."""

from gspo.report.plots import draw
from tests.report.drawing import axes, write


def test_a_range_that_adapts_is_that_of_each_step(tmp_path):
    ranges = [3e-4, 0.1, 5e-4]
    ratio = {"ratio/mean": 1.0, "ratio/std": 0.01, "ratio/noise_floor": 1e-7}
    folder = write(
        tmp_path / "run",
        [ratio | {"step": s, "clip/epsilon": e, "clip/epsilon_high": 2 * e} for s, e in enumerate(ranges, 1)],
    )
    ends = {tuple(line.get_ydata()) for line in axes("ratio", folder).lines}
    assert {tuple(-e for e in ranges), tuple(2 * e for e in ranges)} <= ends
    assert tuple(ranges) in {tuple(line.get_ydata()) for line in axes("noise", folder).lines}


def test_the_band_of_rewards_ends_where_they_do(tmp_path):
    rows = [(0.1, 0.3, 0.0, 1.0), (0.5, 0.7, -0.1, 0.8), (0.5, 0.1, 0.0, 1.0)]
    keys = ("reward", "reward_std", "reward_min", "reward_max")
    lines = [dict(zip(keys, row)) | {"step": s} for s, row in enumerate(rows, 1)]
    (band,) = axes("reward", write(tmp_path / "run", lines)).collections
    ends = {(round(x), round(y, 9)) for x, y in band.get_paths()[0].vertices}
    assert ends == {(1, 0.0), (1, 0.4), (2, -0.1), (2, 0.8), (3, 0.4), (3, 0.6)}


def evaluated(folder, *accuracies):
    """The axes of a run with these accuracies and the ends of their intervals."""
    keys = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    return axes("accuracy", write(folder, [dict(zip(keys, v)) | {"step": s} for s, v in enumerate(accuracies)]))


def test_labels_stand_clear_of_the_error_bars_and_of_the_line(tmp_path):
    values = [(0.3, 0.1, 0.5), (0.6, 0.3, 0.9)]
    ax = evaluated(tmp_path / "run", *values)
    ax.figure.canvas.draw()
    for text, (_, low, high) in zip(ax.texts, values, strict=True):
        below, above = (ax.transData.inverted().transform(corner)[1] for corner in text.get_window_extent().get_points())
        assert above < 100 * low or below > 100 * high, text.get_text()
        (edge,) = text.get_path_effects()
        assert edge._gc == {"linewidth": 3, "foreground": "#ffffff"}  # in the paper's colour


def test_many_evaluations_are_a_band(tmp_path):
    ax = evaluated(tmp_path / "run", *[(0.5, 0.4, 0.6)] * 40)
    assert not ax.containers and len(ax.collections) == 1 and ax.lines[0].get_marker() == "None"


def test_a_step_beyond_the_axis_is_told(tmp_path):
    for longest in (1.2, 60.0):
        lines = [{"step": s, "time/sample": 0.5, "time/train": longest - 0.5 if s == 70 else 0.5} for s in range(1, 101)]
        folder = write(tmp_path / str(longest), lines)
        (drawn,) = [d for d in draw([folder]) if d.name == "time"]
        beyond = longest > axes("time", folder).get_ylim()[1]
        assert beyond == (longest == 60) == ("The longest took 60 s, which is beyond the figure." in drawn.caption)
