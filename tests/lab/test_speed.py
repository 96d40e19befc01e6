"""What the benchmarks make of their measurements: intervals, slopes, comparisons, tables and pictures. Nothing is timed."""

import json
from pathlib import Path

import chain
import gathering
import models
import pictures
import pytest
import readings
import scaling
import tables
import torch
import update
import update_trl
from readings import figure

ROOT = Path(__file__).parents[2]

COMMITTED = json.loads((ROOT / "lab" / "speed" / "results.json").read_text())


def test_slopes_are_exponents():
    assert scaling.slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2)
    costs = {10: [1.0, 2.0, 1.0], 100: [10.0, 20.0, 1.0]}
    found = scaling.line(costs, 3)
    assert (found["slope"], found["low"], found["high"]) == pytest.approx((1, 0, 1))


@pytest.mark.parametrize(
    "before, now, slope, is_worse",
    [
        (figure(4, 3.8, 4.2, 5), 3.5, False, False),  # by less than 15 %
        (figure(4, 3.8, 4.2, 5), 3.3, False, True),
        (figure(4, 3.2, 4.2, 5), 3.3, False, False),  # within its interval
        (figure(4, 3.8, 4.2, 5), 9.0, False, False),
        (figure(0.8, 0.7, 0.9, 5, "lower"), 0.95, False, True),
        (figure(0.8, 0.7, 0.9, 5, "lower"), 0.5, False, False),
        (figure(0.0, -0.01, 0.01, 5, "lower"), 0.1, True, False),  # a slope near 0 has no share to be worse by
        (figure(0.0, -0.01, 0.01, 5, "lower"), 0.2, True, True),
    ],
)
def test_worse(before, now, slope, is_worse):
    later = figure(now, now, now, 5, before["better"])
    assert readings.worse(before, later, slope) is is_worse
    found = readings.regressions("scaling" if slope else "update", {"one": before}, {"one": later, "new": later})
    assert [line.split(":")[1].strip() for line in found] == ["one"] * is_worse


def test_gradients_are_told_apart():
    one = [3.0, -1.0, 1e-5]
    assert update_trl.close([3.001, -1.0, 0.0], one)
    for other in ([3.0, 1.0, 1e-5], [3.0, -1.0], [3.0, float("nan"), 1e-5], [float("nan")] * 3, [-x for x in one]):
        assert not update_trl.close(other, one)
    weight = torch.nn.Linear(3, 2, bias=False)
    weight(torch.ones(3)).sum().backward()
    found = chain.gradients(weight)
    weight.weight.grad.neg_()
    assert chain.gradients(weight) == [-x for x in found]


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_page_is_that_of_the_results(tmp_path, page):
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    tables.write(COMMITTED, [copy])
    assert copy.read_text() == page.read_text(), "python lab/speed/bench.py --tables"


def test_operations_count_each_token_once():
    model, shape = models.dense(), (40, 8, 4, 2)
    made = update.completions(*shape)
    tokens, sampled = 2 * (40 + 4 * 8), 2 * 4 * 8
    weights = 4 * (128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 512)
    looks = 2 * (40 * 41 / 2 + 4 * sum(range(41, 49)))
    by_hand = 6 * (weights * tokens + len(model.tokenizer) * 128 * sampled) + 12 * 4 * 128 * looks
    assert update.operations(model, made) == by_hand


def test_the_pictures_show_what_was_measured(tmp_path):
    figures = {name: dict(found) for name, found in COMMITTED["figures"].items()}
    figures["update_trl"] = {f"{name} against TRL": one for name, one in figures["update"].items()}
    sizes = {"8": 0.1, "16": 0.2}
    for name in ("tokens", "group", "experts"):
        figures["scaling"][f"{name}, memory"] = figure(1, 1, 1, 5, "lower", GiB=sizes)
    figures["head"]["chunks, 16384 tokens"] = figure(1, 1, 1, 5, "lower", against="chunks", seconds=1.0, GiB=1.7)
    made = pictures.draw(figures, tmp_path)
    assert sorted(path.name for path in made) == sorted(path.name for path in pictures.IMAGES.glob("performance-*.png"))
    light, dark = (path.read_bytes() for path in made[:2])
    assert light != dark
    rows = dict(pictures.rows(figures))
    assert {name: goal for name, _, goal in rows["An update"] if goal} == {
        "dense, P 512 R 64 G 8": 4,
        "mixture, P 512 R 64 G 8": 3,
    }
    assert all(set(by) == {"padded rows", "TRL"} for _, by, _ in rows["An update"])


def timed(*rows):
    return [gathering.Timed(f"{saved:g}", int(1000 * saved), 1000, padded, shared) for saved, padded, shared in rows]


def test_the_rule_shares_from_where_sharing_was_faster():
    found = gathering.rule(timed((1.05, 1.0, 1.3), (1.2, 1.2, 1.3), (1.8, 1.8, 1.3), (4.5, 4.5, 1.3)))
    assert found.gathering == 1.46  # the middle of 1.2 and 1.8 by ratio, rounded down
    assert (found.lost, found.worst, found.most) == (0, "", 0)
    assert f"GATHERING_ON_GPU = {found.gathering:g}`" in gathering.said(found)
