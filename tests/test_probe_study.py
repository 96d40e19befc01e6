"""The verdicts on what `gspo probe` recommended: studies/probe.py."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "studies"))

import probe

TOLD = {"easy": {"name": "gspo 0.03"}, "none": {"name": None}, "to come": {"name": "sapo"}}


def lines(setting, **means):
    return [{"setting": setting, "variant": name, "reward": {"mean": mean}} for name, mean in means.items()]


@pytest.mark.parametrize("own, verdict", [(0.75, "holds"), (0.72, "holds"), (0.719, "fails"), (0.1, "fails")])
def test_a_recommendation_holds_within_two_hundredths_of_the_best(own, verdict):
    (row,) = probe.judged(lines("easy", GRPO=0.74, CISPO=0.3, recommended=own), TOLD)
    assert row["verdict"] == verdict and row["worst"] == ("CISPO" if own > 0.3 else "recommended")
    assert row["behind"] == pytest.approx(max(0.0, 0.74 - own)) and row["best"] == ("GRPO" if own < 0.74 else "recommended")


def test_where_nothing_was_recommended_it_could_not_tell():
    (row,) = probe.judged(lines("none", GRPO=0.74, CISPO=0.3), TOLD)
    assert row["verdict"] == "could not tell" and row["own"] is row["behind"] is None and row["best"] == "GRPO"


def test_a_variant_without_a_result_is_not_the_best():
    (row,) = probe.judged(lines("easy", GRPO=None, CISPO=float("nan"), SAPO=0.2, recommended=0.1), TOLD)
    assert row["best"] == "SAPO" and row["means"] == {"SAPO": 0.2, "recommended": 0.1}
