import re
from pathlib import Path

import matplotlib
import pytest
from canvas import DARK, LIGHT, SIZE, Theme, canvas, finish
from matplotlib.lines import Line2D

from gspo.report import chart


def test_the_colours_are_those_of_the_report():
    css = Path(chart.__file__).with_suffix(".css").read_text()
    for theme, text in zip((LIGHT, DARK), css.split("@media"), strict=True):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", text))
        plain = (colours[name] for name in ("paper", "ink", "line"))
        assert theme == Theme(*plain, tuple(colours[f"s{i}"] for i in range(6)))


def drawn(values, unit="share", **how):
    """A line of these values, and its axes when they are finished."""
    with canvas(LIGHT) as (figure, ax):
        ax.plot(range(len(values)), values, label="a")
        finish(figure, ax, "Title", unit, **how)
        figure.canvas.draw()
        return figure, ax


def ticks(ax):
    low, high = ax.get_ylim()
    return [text.get_text() for text in ax.get_yticklabels() if low <= text.get_position()[1] <= high]


def test_small_numbers_have_their_power_in_the_unit():
    _, ax = drawn([-0.0004, 0.0003])
    assert ax.get_ylabel() == "share, 10⁻⁴"
    assert "−4" in ticks(ax) and all("." not in text and "e" not in text for text in ticks(ax))
    _, ax = drawn([0.0, 2000.0], "tokens")
    assert ax.get_ylabel() == "tokens" and "2,000" in ticks(ax)


def test_an_axis_of_positive_values_begins_at_zero_and_ends_where_it_is_told():
    assert drawn([3.0, 4.0])[1].get_ylim()[0] == 0
    assert drawn([-3.0, 4.0])[1].get_ylim()[0] < 0
    assert drawn([0.2, 0.4], top=1.0)[1].get_ylim() == (0, 1)
    assert drawn([3e-3, 20.0], log=True)[1].get_ylim() == pytest.approx((1e-3, 100))
    _, ax = drawn([0.5])  # a single step stands in the middle
    assert ax.get_xticks().tolist() == [0] and sum(ax.get_xlim()) == pytest.approx(0)


def test_powers_are_set_as_powers_and_names_as_they_are():
    """Within the canvas and after it, where figures are saved."""
    with canvas(LIGHT) as (figure, ax):
        for name in ("$10^{2}$", "b"):
            ax.plot([1e-3, 20.0], label=name)
        finish(figure, ax, "$10^{2}$", "share", log=True)
        for _ in range(2):
            figure.canvas.draw()
            assert all(text.get_parse_math() for text in ax.get_yticklabels())
    names = [ax._left_title, *figure.legends[0].get_texts()]
    assert not any(text.get_parse_math() for text in names)


def test_a_legend_makes_the_figure_taller_and_not_the_axes():
    before = dict(matplotlib.rcParams)
    with canvas(DARK) as (figure, ax):
        assert matplotlib.rcParams["text.color"] == DARK.ink
        for name in ("a", "b", "c"):
            ax.plot([1, 2], label=name)
        finish(figure, ax, "Title", "share")
        with_legend = figure.get_size_inches()[1], ax.get_position().height * figure.get_size_inches()[1]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert dict(matplotlib.rcParams) == before
    figure, ax = drawn([1.0, 2.0])  # a lone line needs none
    assert not figure.legends and figure.get_size_inches()[1] == SIZE[1] < with_legend[0]
    assert with_legend[1] == pytest.approx(ax.get_position().height * SIZE[1])


def test_a_broken_line_shows_its_gaps_in_the_legend(subtests):
    """The mark in its middle would hide them in a short one. bars: of errors, which make another handle."""
    for style, long, bars in (
        ("-", False, False),
        ("--", True, False),
        ("", False, False),
        ("-", False, True),
        (":", True, True),
    ):
        with subtests.test(style=style, bars=bars), canvas(LIGHT) as (figure, ax):
            for i, label in enumerate("ab"):
                how = {"ls": style if i else "-", "marker": "o", "label": label}
                ax.errorbar([0, 1], [i, i], [0.1, 0.2], **how) if bars else ax.plot([0, 1], [i, i], **how)
            ax.errorbar([0, 1], [2, 2], [0.1, 0.2], fmt="none", label="c")  # without a line
            finish(figure, ax, "Title", "share")
            figure.canvas.draw()
            (legend,) = figure.legends
            assert (max(line.get_window_extent().width for line in legend.findobj(Line2D)) > 35) == long
