"""The page of a probe, from findings that are known."""

import dataclasses

import pytest

from gspo.config.files import as_config
from gspo.learner.algorithm import resolved
from gspo.probe.advice import advise
from gspo.probe.measure import ProbePlan
from gspo.probe.page import headline, write
from tests.probe.test_advice import OTHER, YOU, candidate, found

PLAN = ProbePlan(24, 48, (0, 1), 2, 2)


def page(folder, measured, **sections):
    config, _ = resolved(as_config({"model": {"path": "m"}, "task": {"source": "<t>"}} | sections, {}))
    advice = advise(measured, 2, 4)
    return advice, write(config, PLAN, measured, advice, folder).read_text()


def test_it_says_what_to_do_first_and_how(tmp_path):
    advice, text = page(tmp_path, found(1.0, [(YOU, 0.2), (OTHER, 0.98)]))
    assert headline(advice) == "Train with other"
    assert text.index("Train with other") < text.index("goes further the right way") < text.index("<h2>All candidates")
    assert "old_logprobs = &quot;auto&quot;" in text and f"--from-probe {tmp_path}" in text
    for line in advice.lines:
        assert f"<td>{line.update.value:.3f} [{line.update.low:.3f}, {line.update.high:.3f}]</td>" in text
    assert "&lt;t&gt;" in text and "<t>" not in text


def test_what_could_not_be_measured_has_no_number(tmp_path):
    measured = found(1.0, [(YOU, 0.2), (OTHER, 0.9)], groups=3)
    measured = dataclasses.replace(measured, notes=["3 of 24 <groups>"])
    advice, text = page(tmp_path, measured)
    assert "The probe could not tell" in text and "3 of 24 &lt;groups&gt;" in text
    assert ">nan" not in text.lower() and "--from-probe" not in text
    assert advice.lines[0].name in text


@pytest.mark.parametrize("own", [0.97, 0.2])
def test_keeping_ones_settings_is_said_so(tmp_path, own):
    measured = found(1.0, [(YOU, own), (candidate("x"), 0.975)], noise={"x": 0.3, "yours": 0.3})
    _, text = page(tmp_path, measured)
    assert ("Keep your settings" in text) == (own == 0.97) and ("--from-probe" in text) == (own == 0.2)


@pytest.mark.parametrize("experts", [False, True])
def test_replay_is_spoken_of_where_there_is_some(tmp_path, experts):
    measured = found(1.0, [(YOU, 0.2), (OTHER, 0.98)])
    for age in measured.ages:
        own = dict(age.ratios["sampler"])
        age.ratios.clear()
        age.ratios.update({"sampler": own} | ({"R2": own} if experts else {}))
    _, text = page(tmp_path, measured)
    assert ("Rows with R2 or R3" in text) == ("Where experts are replayed" in text) == experts
