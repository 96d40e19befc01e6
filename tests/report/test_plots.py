"""The figures: those that the run has data for, in both renderings, whatever is missing or odd."""

import json

import numpy as np
import pytest
from matplotlib.image import imread

from gspo.report import plots
from gspo.report.canvas import DARK, DPI, LIGHT, SIZE
from gspo.report.plots import PLOTS, draw
from gspo.report.read import read_run, run_names
from tests.report.fake_run import make
from tests.report.rows import rollouts, row


def write(folder, lines):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def axes(plot_name, *folders, theme=LIGHT):
    runs = [read_run(folder) for folder in folders]
    plot = plots._with_keys(next(p for p in PLOTS if p.name == plot_name), runs)
    return plots._draw_one(plot, runs, theme).axes[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "demo", steps=30)


def test_a_training_run_has_all_its_figures(run):
    drawn = draw([run])
    assert {d.name for d in drawn} == {
        "accuracy", "reward", "reward_parts", "clip", "ratio", "noise", "entropy", "kl", "length",
        "truncated", "no_signal", "grad_norm", "lr", "throughput", "time",
    }  # fmt: skip
    for d in drawn:
        light, dark = (imread(path)[..., :3] for path in (d.light, d.dark))
        assert light.shape[1] == SIZE[0] * DPI and light.shape[0] >= SIZE[1] * DPI  # sharp, whatever matplotlib's default is
        assert light.shape == dark.shape and d.light.parent == run / "figures"
        assert light[0, 0].min() == 1.0 and dark[0, 0].max() < 0.2  # the paper
        assert light.std() > 0.02 and dark.std() > 0.02  # something is drawn
        edges = [light[:, :4], light[:, -4:], light[:4], light[-4:]]
        assert all((edge == 1).all() for edge in edges), f"{d.name} runs off the picture"


def test_dark_figures_are_what_drawing_them_in_dark_colours_would_give(run, tmp_path):
    """They are the light ones drawn again, with other colours: no pixel may tell."""
    for d in draw([run], tmp_path / "out"):
        plot = plots._with_keys(next(p for p in PLOTS if p.name == d.name), [read_run(run)])
        plots._draw_one(plot, [read_run(run)], DARK).savefig(tmp_path / "dark.png", dpi=DPI)
        assert np.array_equal(imread(tmp_path / "dark.png"), imread(d.dark)), d.name


def test_a_cold_start_has_its_own(tmp_path):
    lines = [{"step": s, "loss": 3 / s, "lr": 3e-3, "grad_norm": 1.0, "tokens": 9, "time/train": 0.1} for s in (1, 2)]
    assert [d.name for d in draw([write(tmp_path / "sft", lines)])] == ["loss", "grad_norm", "lr", "time"]


def test_the_loss_of_a_policy_is_not_drawn(tmp_path):
    assert [d.name for d in draw([write(tmp_path / "a", [{"step": 1, "loss": 0.0, "reward": 0.5}])])] == ["reward"]


def test_a_single_step_works(tmp_path):
    drawn = draw([make(tmp_path / "one", steps=1)])
    assert len(drawn) == 15


@pytest.mark.parametrize("key", ["reward", "kl", "ratio/std", "ratio/noise_floor", "time/sample", "eval/accuracy", "lr"])
@pytest.mark.parametrize("values", [[0.0, 0.0], [None, 1.0], [1e-30, 1e30], [-5.0, 5.0]])
def test_odd_values_do_not_stop_a_figure(tmp_path, key, values):
    draw([write(tmp_path / "run", [{"step": i + 1, key: v} for i, v in enumerate(values)])], tmp_path / "out")


def test_nothing_to_draw_is_no_figure(tmp_path):
    assert draw([write(tmp_path / "run", [{"step": 1, "kl": None, "reward": None, "loss": "x"}])]) == []


def test_a_folder_without_metrics_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"no metrics\.jsonl with at least one step"):
        draw([tmp_path])


def test_accuracy_has_its_intervals_and_ends(run):
    ax = axes("accuracy", run)
    assert [t.get_text() for t in ax.texts] == ["36 %", "88 %"]
    (bars,) = ax.containers
    first = bars.lines[2][0].get_segments()[0][:, 1]
    assert first == pytest.approx([31.84, 40.16], abs=0.01)  # 36 % +- 1.96 sqrt(.36 .64 / 512)


def test_the_ratio_stands_against_the_clip_range(run):
    ax = axes("ratio", run)
    level = {line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1}
    assert level == {-3e-4, 4e-4}
    assert ax.get_ylabel() == "ratio − 1, 10⁻³"


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


def test_every_run_keeps_its_colour_and_a_lone_line_its_name(tmp_path):
    plain = write(tmp_path / "plain", [{"step": s, "reward": 0.5} for s in (1, 2)])
    both = write(tmp_path / "both", [{"step": s, "reward": 0.4, "entropy": 1.0} for s in (1, 2)])
    rewards, lone = axes("reward", plain, both), axes("entropy", plain, both)
    assert len(lone.lines) == 1 and lone.lines[0].get_color() == rewards.lines[1].get_color() != rewards.lines[0].get_color()
    assert [text.get_text() for text in lone.figure.legends[0].get_texts()] == ["both"]


def test_one_spike_lifts_no_window_on_a_logarithmic_axis(tmp_path):
    steps = [{"step": s, "kl": 1.0 if s == 150 else 1e-6} for s in range(1, 301)]
    _, bold = axes("kl", write(tmp_path / "run", steps)).lines
    assert max(bold.get_ydata()) < 1e-5


def test_every_axis_has_its_unit(run):
    for plot in PLOTS:
        if plots._with_keys(plot, [read_run(run)]) is not None:
            ax = axes(plot.name, run)
            assert ax.get_xlabel().startswith("step")
            assert ax.get_ylabel().startswith(plot.unit) and plot.unit


def test_a_long_run_is_smoothed_and_keeps_its_mean(tmp_path):
    rng = np.random.default_rng(0)
    lines = [{"step": s, "entropy": 2.0 + rng.normal()} for s in range(1, 301)]
    raw, bold = axes("entropy", write(tmp_path / "long", lines)).lines
    assert len(bold.get_ydata()) == len(raw.get_ydata()) == 300
    assert bold.get_ydata().std() < 0.4 < raw.get_ydata().std()
    flat = [{"step": s, "entropy": 2.0} for s in range(1, 301)]
    _, bold = axes("entropy", write(tmp_path / "flat", flat)).lines
    assert np.allclose(bold.get_ydata(), 2.0)  # to the very ends


def test_a_short_run_beside_a_long_one_is_not_smoothed(tmp_path):
    long, short = (write(tmp_path / str(n), [{"step": s, "entropy": s % 2} for s in range(n)]) for n in (300, 10))
    none = write(tmp_path / "none", [{"step": 1, "reward": 1.0}])
    ax = axes("entropy", long, short, none)
    assert [len(line.get_ydata()) for line in ax.lines] == [300, 300, 10]
    assert ax.lines[2].get_ydata().tolist() == [0, 1] * 5
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["300", "10"]  # nothing of what has no line
    assert ax.get_xlabel() == "step (bold: running mean, where a thin line shows)"


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


def test_what_a_caption_says_is_drawn(tmp_path):
    lines = [{"step": s, "ratio/noise_floor": 1e-7, "ratio/std": 1e-3} for s in (1, 2)]
    (without,) = [d.caption for d in draw([write(tmp_path / "a", lines)]) if d.name == "noise"]
    (both,) = [
        d.caption for d in draw([write(tmp_path / "b", [r | {"clip/epsilon": 1e-2} for r in lines])]) if d.name == "noise"
    ]
    assert "clip range" not in without and "clip range (dashed)" in both


def test_names_are_no_formulas(tmp_path):
    lines = [{"step": s, "reward/$\\frac{$": 1.0, "reward/" + "long " * 40: 2.0} for s in (1, 2)]
    (shown,) = draw([write(tmp_path / "run", lines)])
    edges = imread(shown.light)[..., :3][:, -4:]
    assert (edges == 1).all()


def test_several_runs_are_laid_over_each_other(run, tmp_path):
    second = make(tmp_path / "other" / "demo", steps=20, seed=1)
    drawn = draw([run, second], tmp_path / "out")
    assert all(d.light.name == f"compare-{d.name}.png" for d in drawn)
    assert run_names([run, second]) == [f"{run.parent.name}/demo", "other/demo"]
    ax = axes("time", run, second)
    assert len(ax.lines) == 2 and ax.get_title(loc="left") == "Time of a step"


def test_kinds_of_completions_are_drawn_by_their_prefix(tmp_path):
    lines = [{"step": s, "completion/worked": 0.4, "completion/cut_off": 0.1} for s in (1, 2)]
    ax = axes("completions", write(tmp_path / "run", lines))
    assert [line.get_label() for line in ax.lines] == ["worked", "cut off"]


def test_stages_are_thin_lines_and_queries_have_a_figure(tmp_path):
    lines = [
        {
            "step": s, "reward": 0.1 * s, "completions/mean_length": 5.0 + s, "stage": (s > 2) + (s > 4),
            "stage/max_completion_length": 8 if s < 3 else 16, "queries/active": 40 - s, "queries/resting": s,
            "queries/unseen": 40 - 8 * s,
        }
        for s in range(1, 6)
    ]  # fmt: skip
    folder = write(tmp_path / "staged", lines)
    drawn = {d.name: d for d in draw([folder])}
    assert "queries" in drawn and all("Thin lines: a stage begins." in d.caption for d in drawn.values())
    ax = axes("reward", folder)
    assert [line.get_xdata()[0] for line in ax.lines if len(set(line.get_xdata())) == 1] == [2.5, 4.5]
    assert [line.get_label() for line in axes("length", folder).lines][:2] == ["mean", "the stage's limit"]
    assert plots.borders(read_run(write(tmp_path / "plain", lines[:2]))) == []
    both = axes("length", folder, write(tmp_path / "other", lines))
    assert len(both.lines) == 2  # one a run, without borders
