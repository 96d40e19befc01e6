"""The figures: those that the run has data for, whatever is missing or odd."""

import numpy as np

from gspo.report import marks, plots
from gspo.report.chart import layout
from gspo.report.read import read_run, run_names
from tests.report.drawing import figure, of, write


def charts(*folders):
    return plots.charts([read_run(folder) for folder in folders])


def test_what_a_run_has_figures_of(tmp_path):
    sft = {"loss": 3.0, "lr": 3e-3, "grad_norm": 1.0, "tokens": 9, "time/train": 0.1}
    for name, line, figures in (
        ("cold start", sft, ["loss", "grad_norm", "lr", "time"]),
        ("policy", {"loss": 0.0, "reward": 0.5}, ["reward"]),  # its loss tells nothing
        ("nothing", {"kl": None, "reward": None, "loss": "x"}, []),
    ):
        assert [chart.name for chart in charts(write(tmp_path / name, [line | {"step": 1}]))] == figures, name


def test_every_run_keeps_its_colour_and_a_lone_line_its_name(tmp_path):
    plain = write(tmp_path / "plain", [{"step": s, "reward": 0.5} for s in (1, 2)])
    both = write(tmp_path / "both", [{"step": s, "reward": 0.4, "entropy": 1.0} for s in (1, 2)])
    assert [mark.colour for mark in figure("reward", plain, both).marks] == [0, 1]
    lone = figure("entropy", plain, both)
    assert [mark.colour for mark in lone.marks] == [1] and [text for *_, text in layout(lone)["legend"]] == ["both"]


def test_one_spike_lifts_no_window_on_a_logarithmic_axis(tmp_path):
    steps = [{"step": s, "kl": 1.0 if s == 150 else 1e-6} for s in range(1, 301)]
    (bold,) = of(figure("kl", write(tmp_path / "run", steps)), "line")
    assert max(bold.y) < 1e-5


def test_a_long_run_is_smoothed_and_keeps_its_mean(tmp_path):
    rng = np.random.default_rng(0)
    lines = [{"step": s, "entropy": 2.0 + rng.normal()} for s in range(1, 301)]
    raw, bold = figure("entropy", write(tmp_path / "long", lines)).marks
    assert (raw.style, bold.style) == ("raw", "line") and len(bold.y) == len(raw.y) == 300
    assert bold.y.std() < 0.4 < raw.y.std()
    flat = [{"step": s, "entropy": 2.0} for s in range(1, 301)]
    _, bold = figure("entropy", write(tmp_path / "flat", flat)).marks
    assert np.allclose(bold.y, 2.0)  # to the very ends


def test_a_short_run_beside_a_long_one_is_not_smoothed(tmp_path):
    long, short = (write(tmp_path / str(n), [{"step": s, "entropy": s % 2} for s in range(n)]) for n in (300, 10))
    none = write(tmp_path / "none", [{"step": 1, "reward": 1.0}])
    chart = figure("entropy", long, short, none)
    assert [len(mark.y) for mark in of(chart, "line", "raw")] == [300, 300, 10]
    assert of(chart, "line")[1].y.tolist() == [0, 1] * 5
    assert [text for *_, text in layout(chart)["legend"]] == ["300", "10"]  # nothing of what has no line
    assert chart.x_note == " (bold: running mean, where a thin line shows)"


def test_a_caption_names_what_is_drawn_of_one_run_or_of_several(tmp_path):
    lines = [{"step": s, "kl": 1e-4, "kl_ref": 1e-3} for s in (1, 2)]
    one, other = (write(tmp_path / name, lines) for name in "ab")
    told = [figure("kl", *runs).caption for runs in ([one], [one, other])]
    assert told[0] == "Mean divergence of the policy from the sampler, within a step; from the reference model."
    assert told[1] == "Mean divergence of the policy from the sampler, within a step."


def test_parts_that_count_have_an_axis_of_their_own(tmp_path):
    lines = [{"step": s, "reward/right": 0.5, "reward/bonus": -1.5, "reward/turns": 3.0 * s} for s in (1, 2)]
    folder = write(tmp_path / "agent", lines)
    assert {chart.name for chart in charts(folder)} == {"reward_parts", "reward_counts"}
    for name, labels in (("reward_parts", ["right", "bonus"]), ("reward_counts", ["turns"])):
        assert [mark.label for mark in figure(name, folder).marks if mark.label] == labels
    counts = write(tmp_path / "counts", [{"step": s, "reward/calls": 4.0, "reward/turns": 3.0} for s in (1, 2)])
    assert [chart.name for chart in charts(counts)] == ["reward_parts"]
    alone = write(tmp_path / "alone", [{"step": s, "reward/turns": 3.0} for s in (1, 2)])
    assert not charts(alone)  # it is the reward


def test_several_runs_are_laid_over_each_other(tmp_path):
    parts = [{"step": s, "time/sample": 0.5, "time/train": 0.5} for s in (1, 2)]
    runs = [write(tmp_path / name / "demo", parts) for name in ("one", "other")]
    assert run_names(runs) == ["one/demo", "other/demo"]
    chart = figure("time", *runs)
    assert [mark.style for mark in chart.marks] == ["line", "line"] and chart.title == "Time of a step"


def test_several_runs_whose_first_line_is_zero_are_drawn(tmp_path):
    """Updates on policy have a KL of 0, which no logarithmic axis has room for; only the first line is drawn."""
    runs = [write(tmp_path / name, [{"step": s, "kl": 0.0, "mismatch/kl": 1e-6} for s in (1, 2)]) for name in "ab"]
    chart = figure("kl", *runs)
    assert not chart.log and [mark.y.tolist() for mark in chart.marks] == [[0, 0], [0, 0]]
    assert figure("kl", runs[0]).log


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
    drawn = {chart.name: chart for chart in charts(folder)}
    assert "queries" in drawn and all("Thin lines: a stage begins." in chart.caption for chart in drawn.values())
    assert [mark.x.tolist() for mark in of(drawn["reward"], "stage")] == [[2.5, 4.5]]
    assert [mark.label for mark in of(drawn["length"], "line")] == ["mean", "the stage's limit"]
    assert marks.borders(read_run(write(tmp_path / "plain", lines[:2]))) == []
    both = figure("length", folder, write(tmp_path / "other", lines))
    assert [mark.style for mark in both.marks] == ["line", "line"]  # one a run, without borders
