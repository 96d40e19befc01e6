"""Figures as SVG: colours, axes, paths, legends, and what the page shows under the pointer."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from gspo.report import chart as charts
from gspo.report.chart import Chart, ChartMark, layout, number, ticks
from gspo.report.html import write_figures


def line(values, label="a", style="line", **more):
    return ChartMark(label, np.arange(len(values), dtype=float), np.array(values, float), style=style, **more)


def drawn(*marks, **how):
    return layout(Chart("name", "Title", "share", "Caption.", marks, **how))


def data(made):
    return json.loads(made["data"])


def test_round_numbers_on_the_axes():
    assert ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1] and ticks(-3, 22, 4) == [0, 10, 20]
    assert ticks(0.6, 1.4, 6, whole=True) == [1] and ticks(1, 60, 6, whole=True) == [10, 20, 30, 40, 50, 60]
    for low, high in ((0, 1e-150), (1e149, 1.1e149), (-1e150, 1e150), (1e20, 1e20 + 16384)):
        assert 1 <= len(ticks(low, high, 4)) <= 6
    spelled = (0, 2000, -0.25, 3e-5, 1e150, 0.1 + 0.2)
    assert [number(value) for value in spelled] == ["0", "2,000", "−0.25", "3e−5", "1e+150", "0.3"]


def test_an_axis_of_positive_values_begins_at_zero_and_ends_where_it_is_told():
    assert data(drawn(line([3, 4])))["y"][0] == 0 > data(drawn(line([-3, 4])))["y"][0]
    assert data(drawn(line([0.2, 0.4]), top=1.0))["y"] == [0, 1]
    made = drawn(line([3e-3, 20]), log=True)
    assert data(made)["y"] == [-3, 2]
    assert [text for *_, text in made["rows"]] == ["10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹", "10²"]
    assert data(drawn(line([0.5])))["x"] == [-0.6, 0.6]  # a single step stands in the middle


def test_paths_stand_where_their_values_are():
    made = drawn(line([0, 1, 2]), line([1, 1, 3], "b", low=np.array([0, 1, 1.0])), line([9, 9], style="stage"), top=2.0)
    width, high = made["width"], charts.HEIGHT
    (_, path), (_, band), (_, stages) = made["paths"]
    middle = f"{width / 2:.1f}"
    assert path == f"M0.0 {high:.1f}L{middle} {high / 2:.1f}L{width:.1f} 0.0"
    edge = f"M0.0 {high / 2:.1f}L{middle} {high / 2:.1f}L{width:.1f} 0.0"  # what is beyond the axis stands at its end
    assert band == edge + f"L{width:.1f} {high / 2:.1f}L{middle} {high / 2:.1f}L0.0 {high:.1f}Z"
    assert stages == f"M0.0 0V{high}M{middle} 0V{high}"


def test_a_long_line_keeps_its_spikes_and_few_points():
    values = np.sin(np.arange(50_000) / 5000)
    values[31_234] = 40.0
    made = drawn(line(values), line(values, "", "band", low=values - 1))
    ((_, _, steps, shown),) = data(made)["lines"]
    assert len(steps) <= charts.MOST_POINTS and max(shown) == 40 and steps[shown.index(40)] == 31_234
    assert all(len(path) < 20_000 for _, path in made["paths"])
    low, high = np.random.default_rng(0).uniform(size=(2, 5_000))  # areas above each other meet
    made = drawn(line(low, "a", "area", low=0 * low), line(low + high, "b", "area", low=low))
    lower, upper = (path.strip("MZ").split("L") for _, path in made["paths"])
    half = len(lower) // 2
    assert lower[:half] == upper[half:][::-1]


def test_the_values_under_the_pointer():
    low = np.array([0.25, 0.5])
    made = drawn(line([1, 2.00004]), line([0.5, 1], "", "bars", low=low), line([0.5, 1], "part", "area", low=low, colour=7))
    assert data(made)["lines"] == [
        ["a", "c0", [0, 1], [1, 2]], ["", "c0", [0, 1], ["0.25 to 0.5", "0.5 to 1"]], ["part", "c1", [0, 1], [0.25, 0.5]],
    ]  # fmt: skip
    assert data(drawn(line([0, 1]), names=("1", "16"), x_label="k"))["names"] == ["1", "16"]


def test_legends_tell_lines_apart():
    assert not drawn(line([1, 2]))["legend"] and len(drawn(line([1, 2]), legend=True)["legend"]) == 1
    made = drawn(*(line([1, 2], f"run {i}", colour=i) for i in range(13)), line([0, 1], "l" * 60, "limit", colour=None))
    styles = [css for _, _, css, _ in made["legend"]]
    assert styles[0] == "line c0" and styles[12] == "line c0 dash2" and styles[-1] == "limit" and len(set(styles)) == 14
    assert len(made["legend"][-1][-1]) == charts.LONGEST
    assert made["whole"][1] > made["legend"][-1][1] and {x for x, *_ in made["legend"]} == {4}  # too long for two columns
    assert {x for x, *_ in drawn(line([1, 2]), line([1, 2], "b"))["legend"]} == {4, 4 + charts.WIDTH // 2}


def test_a_figure_on_disk_is_svg_of_its_own_and_names_are_escaped(tmp_path):
    odd = """<script>&"'\x1b]]>"""
    (tmp_path / "b-name.svg").symlink_to(tmp_path / "other")
    lines = [line([1, 2], odd), line([2, 1], "b")]
    write_figures([Chart("name", odd, odd, odd, lines, texts=[(0, 1, True, odd)])], tmp_path, "b-")
    root = ElementTree.fromstring((tmp_path / "b-name.svg").read_text())
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(odd.replace("\x1b", "\\x1b")) == 4 and not (tmp_path / "other").exists()
    assert "prefers-color-scheme: dark" in next(root.iter("{http://www.w3.org/2000/svg}style")).text


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-30, 1e30], [-5.0, 5.0], [1e150, -1e150], [5e-324, 0]])
def test_odd_values_do_not_stop_a_figure(values):
    made = drawn(line(values))
    assert "nan" not in str(made) and made["rows"]
