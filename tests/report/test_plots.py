"""The figures: those that the run has data for, in both renderings, whatever is missing or odd."""

import numpy as np
import pytest
from matplotlib.image import imread

from gspo.report import canvas, marks, plots
from gspo.report.canvas import DARK, DPI, SIZE
from gspo.report.plots import PLOTS, draw
from gspo.report.read import read_run, run_names
from tests.report.drawing import axes, write
from tests.report.fake_run import make


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


def test_dark_figures_are_what_drawing_them_in_dark_colours_would_give(run, tmp_path, monkeypatch):
    """They are the light ones drawn again, with other colours: no pixel may tell."""
    drawn = draw([run], tmp_path / "out")
    for module in (canvas, plots, marks):
        monkeypatch.setattr(module, "LIGHT", DARK)
    for d in drawn:
        axes(d.name, run).figure.savefig(tmp_path / "dark.png", dpi=DPI)
        assert np.array_equal(imread(tmp_path / "dark.png"), imread(d.dark)), d.name


def test_what_a_run_has_figures_of(tmp_path):
    sft = {"loss": 3.0, "lr": 3e-3, "grad_norm": 1.0, "tokens": 9, "time/train": 0.1}
    for name, line, figures in (
        ("cold start", sft, ["loss", "grad_norm", "lr", "time"]),
        ("policy", {"loss": 0.0, "reward": 0.5}, ["reward"]),  # its loss tells nothing
        ("nothing", {"kl": None, "reward": None, "loss": "x"}, []),
    ):
        assert [d.name for d in draw([write(tmp_path / name, [line | {"step": 1}])])] == figures, name


@pytest.mark.parametrize("values", [[0.0, 0.0], [None, 1e-30, 1e30], [-5.0, 5.0]])
def test_odd_values_do_not_stop_a_figure(tmp_path, values):
    keys = ("reward", "kl", "ratio/std", "ratio/noise_floor", "time/sample", "eval/accuracy", "lr")
    lines = [dict.fromkeys(keys, value) | {"step": i} for i, value in enumerate(values, 1)]
    assert len(draw([write(tmp_path / "run", lines)])) == 7


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


def test_what_a_caption_says_is_drawn(tmp_path):
    lines = [{"step": s, "ratio/noise_floor": 1e-7, "ratio/std": 1e-3} for s in (1, 2)]
    (without,) = [d.caption for d in draw([write(tmp_path / "a", lines)]) if d.name == "noise"]
    (both,) = [
        d.caption for d in draw([write(tmp_path / "b", [r | {"clip/epsilon": 1e-2} for r in lines])]) if d.name == "noise"
    ]
    assert "clip range" not in without and "clip range (dashed)" in both


def test_a_caption_names_what_is_drawn_of_one_run_or_of_several(tmp_path):
    lines = [{"step": s, "kl": 1e-4, "kl_ref": 1e-3} for s in (1, 2)]
    one, other = (write(tmp_path / name, lines) for name in "ab")
    told = [draw(runs, tmp_path / "out")[0].caption for runs in ([one], [one, other])]
    assert told[0] == "Mean divergence of the policy from the sampler, within a step; from the reference model."
    assert told[1] == "Mean divergence of the policy from the sampler, within a step."


def test_parts_that_count_have_an_axis_of_their_own(tmp_path):
    lines = [{"step": s, "reward/right": 0.5, "reward/bonus": -1.5, "reward/turns": 3.0 * s} for s in (1, 2)]
    folder = write(tmp_path / "agent", lines)
    assert {d.name for d in draw([folder])} == {"reward_parts", "reward_counts"}
    for name, labels in (("reward_parts", ["right", "bonus"]), ("reward_counts", ["turns"])):
        ax = axes(name, folder)
        assert [line.get_label() for line in ax.lines] == labels
    counts = write(tmp_path / "counts", [{"step": s, "reward/calls": 4.0, "reward/turns": 3.0} for s in (1, 2)])
    assert [d.name for d in draw([counts])] == ["reward_parts"]
    alone = write(tmp_path / "alone", [{"step": s, "reward/turns": 3.0} for s in (1, 2)])
    assert not draw([alone])  # it is the reward


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


def test_several_runs_whose_first_line_is_zero_are_drawn(tmp_path):
    """Updates on policy have a KL of 0, which no logarithmic axis has room for; only the first line is drawn."""
    runs = [write(tmp_path / name, [{"step": s, "kl": 0.0, "mismatch/kl": 1e-6} for s in (1, 2)]) for name in "ab"]
    ax = axes("kl", *runs)
    assert ax.get_yscale() == "linear" and [line.get_ydata().tolist() for line in ax.lines] == [[0, 0], [0, 0]]
    assert axes("kl", runs[0]).get_yscale() == "log"


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
    assert marks.borders(read_run(write(tmp_path / "plain", lines[:2]))) == []
    both = axes("length", folder, write(tmp_path / "other", lines))
    assert len(both.lines) == 2  # one a run, without borders
