"""What stands beside the lines of a figure: bands, labels, the clip range, the time of steps."""

import pytest

from gspo.report.plots import draw
from tests.report.drawing import axes, write
from tests.report.rows import rollouts, row


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


@pytest.mark.parametrize(
    ("rewards", "spread", "ends"),
    [
        ([0.1, 0.5, 0.9], [0.3, 0.5, 0.3], (0.0, 1.0)),  # 0/1 rewards
        ([0.5, 0.5], [0.7, 0.7], (0.0, 1.0)),  # two completions a group: 0 and 1
        ([0.1, 0.5], [1.0, 1.0], (-0.9, 1.5)),  # spread as no reward between 0 and 1 can
        ([-0.1, 0.5], [0.1, 0.1], (-0.2, 0.6)),
    ],
)
def test_the_band_of_rewards_ends_where_they_do(tmp_path, rewards, spread, ends):
    lines = [{"step": s, "reward": r, "reward_std": d} for s, (r, d) in enumerate(zip(rewards, spread), 1)]
    (band,) = axes("reward", write(tmp_path / "run", lines)).collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx(ends)


def test_the_band_goes_as_far_as_a_logged_reward(tmp_path):
    folder = write(tmp_path / "run", [{"step": s, "reward": 0.1, "reward_std": 0.2} for s in (1, 2)])
    for reward, end in ((0.0, 0.0), (-0.04, -0.1)):
        rollouts(folder, [row(1, "q", 1.0), row(2, "q", reward), row(2, "q", None)])
        (band,) = axes("reward", folder).collections
        assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(end)


def test_labels_stand_clear_of_the_error_bars(tmp_path):
    keys = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    values = [(0.3, 0.1, 0.5), (0.6, 0.3, 0.9)]
    ax = axes("accuracy", write(tmp_path / "run", [dict(zip(keys, v)) | {"step": s} for s, v in enumerate(values)]))
    ax.figure.canvas.draw()
    for text, (_, low, high) in zip(ax.texts, values):
        below, above = (ax.transData.inverted().transform(corner)[1] for corner in text.get_window_extent().get_points())
        assert above < 100 * low or below > 100 * high, text.get_text()


def test_many_evaluations_are_a_band(tmp_path):
    keys = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    lines = [dict(zip(keys, (0.5, 0.4, 0.6))) | {"step": s} for s in range(40)]
    ax = axes("accuracy", write(tmp_path / "run", lines))
    assert not ax.containers and len(ax.collections) == 1 and ax.lines[0].get_marker() == "None"


@pytest.mark.parametrize("longest", [1.2, 60.0])
def test_a_step_beyond_the_axis_is_told(tmp_path, longest):
    lines = [{"step": s, "time/sample": 0.5, "time/train": longest - 0.5 if s == 70 else 0.5} for s in range(1, 101)]
    folder = write(tmp_path / "run", lines)
    (drawn,) = [d for d in draw([folder]) if d.name == "time"]
    beyond = longest > axes("time", folder).get_ylim()[1]
    assert beyond == (longest == 60) == ("The longest took 60 s, which is beyond the figure." in drawn.caption)


def test_the_line_does_not_cross_a_label(tmp_path):
    """Where it would, the label has an edge in the paper's colour."""
    lines = [{"step": s, "eval/accuracy": s / 10, "eval/accuracy_low": 0.0, "eval/accuracy_high": 1.0} for s in range(8)]
    ax = axes("accuracy", write(tmp_path / "run", lines))
    assert len(ax.texts) == 2
    for text in ax.texts:
        (edge,) = text.get_path_effects()
        assert edge._gc == {"linewidth": 3, "foreground": "#ffffff"}
