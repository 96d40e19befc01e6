"""The verdicts on what `gspo probe` recommended: studies/probe.py."""

import json
import math
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from statistics import NormalDist, variance

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


def test_the_fixed_choices_run_first():
    names = [cell.name for cell in probe.cells_of(probe.HERE / "results" / "probe")]
    later = {name for name in names if not fnmatch(name, probe.FIXED)}
    assert later == {name for name in names if "/recommended/" in name} and 30 < len(later) < len(names) / 8


def test_where_nothing_was_recommended_it_could_not_tell():
    (row,) = probe.judged(lines("none", GRPO=0.74, CISPO=0.3), TOLD)
    assert row["verdict"] == "could not tell" and row["own"] is row["behind"] is None and row["best"] == "GRPO"


def test_a_variant_without_a_result_is_not_the_best():
    (row,) = probe.judged(lines("easy", GRPO=None, CISPO=float("nan"), SAPO=0.2, recommended=0.1), TOLD)
    assert row["best"] == "SAPO" and row["means"] == {"SAPO": 0.2, "recommended": 0.1}


def test_how_often_an_equal_choice_would_fail_by_chance():
    """Of two choices their differences by seed say it."""
    one, other = [0.80, 0.90, 0.85], [0.82, 0.86, 0.89]
    error = math.sqrt(variance([a - b for a, b in zip(one, other)]) / 3)
    wanted = 1 - NormalDist(0, error).cdf(probe.NEAR)
    assert 0.1 < wanted < 0.4 and probe.by_chance({"one": one, "other": other}) == pytest.approx(wanted, abs=0.01)
    shifted = [x + shift for x, shift in zip(other, (0.0, 0.05, -0.05))]  # seeds have it in common: no noise of a choice
    of_seeds = {"one": [x + shift for x, shift in zip(one, (0.0, 0.05, -0.05))], "other": shifted}
    assert probe.by_chance(of_seeds) == pytest.approx(wanted, abs=0.01)


def test_what_broke_down_says_nothing_of_the_noise_and_what_is_missing_is_said():
    calm = {name: [0.8, 0.9, 0.7] for name in "abcdefgh"}
    assert probe.by_chance(calm) == 0
    assert probe.by_chance(calm | {"h": [0.1, 0.6, 0.2]}) == 0
    wild = {name: [1e3 * math.sin(7 * i + 5 * j) for j in range(3)] for i, name in enumerate("abcdefgh")}
    assert math.isnan(probe.by_chance(wild | {"a": [1.0]})) and math.isnan(probe.by_chance({"a": [1.0, 2.0]}))


def test_a_choice_that_the_probe_could_not_tell_from_its_own_is_known_by_its_words():
    reasons = ["It goes further.", "The probe cannot tell it from grpo 0.2, recomputed, cispo: noise."]
    told = {"name": "gspo 0.03", "reasons": reasons}
    named = {variant for variant in probe.VARIANTS if probe.alike(told, variant)}
    assert named == {"GSPO 3e-2", "GRPO", "CISPO"}
    assert not any(probe.alike({"name": None, "reasons": ["Nothing."]}, variant) for variant in probe.VARIANTS)


def test_how_far_the_policy_moves_is_read_from_the_runs_of_the_papers_range(tmp_path):
    """Steps 2 to 6 of all seeds: 2e-5 to 6e-5 and 12e-5 to 16e-5. Where step 0 was evaluated it has a line."""
    with tarfile.open(tmp_path / "cells.tar.xz", "w:xz") as packed:
        for variant, seed, plus in (("GSPO-3e-4", 0, 0), ("GSPO-3e-4", 1, 10), ("CISPO", 0, 1000)):
            file = tmp_path / f"{variant}-{seed}.jsonl"
            steps = [{"step": step, "kl": 1e-5 * (step + plus)} for step in range(seed, 9)]
            file.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
            packed.add(file, f"cells/two-words/{variant}/seed{seed}/metrics.jsonl")
            packed.add(file, f"cells/two-words/{variant}/seed{seed}/config.toml")
    with tarfile.open(tmp_path / "cells.tar.xz") as packed:
        assert probe.moved(packed) == {"two-words": pytest.approx(9e-5)}  # between 6e-5 and 12e-5
