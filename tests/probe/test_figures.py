"""The figures of a probe: what is drawn, and that nothing is drawn of nothing."""

import dataclasses

import pytest
from PIL import Image

from gspo.probe.advice import advise
from gspo.probe.figures import draw, shown
from gspo.probe.measure import ProbePlan
from tests.probe.test_advice import OTHER, YOU, candidate, found

PLAN = ProbePlan(24, 48, (0, 1), 2, 2)


def drawn(folder, measured):
    return {each.name: each for each in draw(measured, advise(measured, 2, 4), PLAN, folder)}


def test_each_has_both_renderings_and_says_what_it_shows(tmp_path):
    measured = found(1.0, [(YOU, 0.2), (OTHER, 0.98)], clipped={"yours": (0.1, 0.2)})
    measured.ages[-1].lengths[:] = [(4, 0.1, -0.01), (8, 0.07, -0.01), (16, 0.05, 0.01)]
    measured.ages[-1].law = (-0.5, -0.6, -0.4)
    figures = drawn(tmp_path, measured)
    assert list(figures) == ["updates", "spread", "lengths", "clipped"]
    for figure in figures.values():
        assert figure.caption.endswith((".", ")"))
        sizes = {Image.open(path).size for path in (figure.light, figure.dark)}
        assert len(sizes) == 1
    assert "-0.50 [-0.60, -0.40]" in figures["lengths"].caption


def test_nothing_is_drawn_of_what_was_not_measured(tmp_path):
    one_age = found(1.0, [(YOU, 0.2), (OTHER, 0.98)], ages=(0,), groups=0)
    still = [dataclasses.replace(age, ratios={"sampler": {"sd_token": 0.0}}) for age in one_age.ages]
    assert drawn(tmp_path, dataclasses.replace(one_age, ages=still)) == {}


@pytest.mark.parametrize("own", [0.2, 0.979])
def test_at_most_four_lines_and_ones_own_first(own):
    names = [candidate(name, algorithm="grpo") for name in ("gspo 0.0003", "gspo auto", "grpo 0.2", "reinforce", "dppo_tv")]
    measured = found(1.0, [(YOU, own), (OTHER, 0.98), *((each, 0.5) for each in names)], noise={"yours": 0.2, "other": 0.2})
    kept = shown(measured, advise(measured, 2, 4))
    assert kept[0] == "yours" and len(kept) == 4 and ("other" in kept) == (own == 0.2)
