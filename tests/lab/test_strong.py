"""The study of training where the mechanism is strong: its centred ratio, its plan, a whole cell, its verdicts."""

import json
import re

import numpy as np
import pytest
import report
import strong
import strong_cell
import strong_seen
import strong_told
import torch

from gspo.config.algorithm import resolve
from gspo.config.files import as_config
from gspo.learner.objective import PolicyObjective
from gspo.objective import losses
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.statistics.intervals import student


def batch():
    rng = np.random.default_rng(0)
    y = Completions.of(torch.tensor([3, 5, 2, 4]))
    logp, old = (torch.tensor(rng.normal(-1, 0.1, 14), requires_grad=grad) for grad in (True, False))
    return logp, old, torch.tensor([1.0, -1.0, 0.5, -2.0], dtype=torch.float64), y


def test_the_centred_ratio_is_that_of_the_log_less_its_mean():
    logp, old, A, y = batch()
    found = strong_cell.gspo_centred(logp, old, A, y, 0.02, 0.03)
    log_s = [float(part.mean()) for part in (logp - old).detach().split([3, 5, 2, 4])]
    s = [np.exp(each - np.mean(log_s)) for each in log_s]
    terms = [min(r * a, min(max(r, 0.98), 1.03) * a) for r, a in zip(s, A.tolist())]
    torch.testing.assert_close(found.ratio.detach(), torch.tensor(s, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.loss.detach(), -torch.tensor(terms, dtype=torch.float64), rtol=1e-12, atol=0)
    assert found.clipped_low.tolist() == [r < 0.98 and a < 0 for r, a in zip(s, A.tolist())]
    (gradient,) = torch.autograd.grad(found.loss.sum(), logp)
    wide = [-r * a / n * (not low and not high) for r, a, n, low, high in zip(
        s, A.tolist(), [3, 5, 2, 4], found.clipped_low, found.clipped_high)]  # fmt: skip
    torch.testing.assert_close(gradient, torch.tensor(np.repeat(wide, [3, 5, 2, 4])), rtol=1e-12, atol=1e-15)


def test_a_shift_of_all_changes_nothing_of_it():
    logp, old, A, y = batch()
    one, other = (strong_cell.gspo_centred(logp + shift, old, A, y, 0.02, 0.03) for shift in (0.0, 0.7))
    plain = losses.gspo(logp + 0.7, old, A, y, 0.02, 0.03)
    torch.testing.assert_close(one.loss, other.loss)
    assert one.clipped_low.equal(other.clipped_low) and plain.clipped_high[A > 0].all()  # all on one side


def test_it_is_in_the_table_while_a_cell_runs_and_a_range_that_sets_itself_sees_it():
    logp, old, A, y = batch()
    with strong_cell.centring():
        algorithm = as_config({"algorithm": {"name": strong_cell.CENTRED, "epsilon": "auto"}}, {}).algorithm
        objective = PolicyObjective(*resolve(algorithm)[:2], 8)
        surrogate = objective.surrogate(logp.detach(), A, y, {"logp_old": old})
        assert objective.watched(surrogate, logp, old, y) is surrogate.ratio
        plain = PolicyObjective(ALGORITHMS["gspo"], algorithm, 8)
        surrogate = plain.surrogate(logp.detach(), A, y, {"logp_old": old})
        torch.testing.assert_close(plain.watched(surrogate, logp, old, y).detach(), surrogate.ratio)
    assert strong_cell.CENTRED not in ALGORITHMS


def test_all_variants_have_as_many_choices_and_all_of_them_are_settings_of_a_run():
    with strong_cell.centring():
        for variant in strong.VARIANTS:
            every = strong.choices(variant)
            assert len(every) == 30 and len({json.dumps(each) for each in every}) == 30
            assert [len(part) for part in strong.parts(variant)] == [12, 18]
            for each in every:
                resolve(as_config(each, {}).algorithm)
    assert strong.variants("hot dense") == [name for name in strong.variants("int4") if "R2" not in name]
    assert len({cell.name for cell in strong.sweep()}) == len(strong.sweep()) == 3 * 2 * 8 * 2


def test_the_first_sweep_is_a_part_of_the_wider_one():
    rates, ranges = ({each["optimizer"]["lr"] for each in strong.parts(name)[0]} for name in ("gspo", "no ratio"))
    assert rates == {3e-4, 1e-3, 3e-3, 1e-2} and min(ranges) == 1e-4 and max(ranges) == 0.032
    assert {each["algorithm"]["epsilon"] for each in strong.parts("gspo")[0]} == {0.01, 0.05, 0.2}
    wider = strong.parts("grpo")[1]
    assert {each["algorithm"]["epsilon_high"] for each in wider} == {0.04, 0.133, 0.4, 2.7, strong.NONE}


def swept(cell, best=7):
    """What a cell of the sweep would have told: of all choices that of this number was best."""
    first = 12 * cell.part
    runs = [
        {"variant": cell.variant, "mean": 0.2 + cell.seed / 1e4 if first + i == best else 0.1} for i in range(len(cell.runs))
    ]
    return {"settings": cell.settings, "runs": runs}


def test_runs_are_planned_with_the_best_of_the_sweep_once_it_has_ended():
    told = [swept(cell, best=4 if cell.variant == "gspo" else 7) for cell in strong.sweep()]
    assert strong.cells(told[:-1]) == strong.cells([]) == strong.sweep()
    planned = strong.cells(told)[len(strong.sweep()) :]
    assert len(planned) == 8 * 8 and len({cell.name for cell in planned}) == 64
    runs = dict(planned[0].runs)
    assert (
        dict(strong.cells([swept(cell, best=20) for cell in strong.sweep()])[-1].runs)["gspo"]["algorithm"]["epsilon"]
        == 0.002
    )
    assert runs["gspo"] == strong.choices("gspo")[4] and runs["grpo"] == strong.choices("grpo")[7]
    assert [cell.seed for cell in planned[:8]] == [8] * 8 and "gspo R2" not in dict(planned[1].runs)
    told[0]["settings"] = told[0]["settings"] | {"last": 1}  # another plan's
    assert strong.cells(told) == strong.sweep()


def test_what_is_added_differs_in_nothing_else_and_hot_runs_in_the_rate_alone():
    chosen = strong.chosen([swept(cell) for cell in strong.sweep()])
    mixture, hot = strong.judged("mixture", chosen), strong.judged("hot", chosen)
    for name, (plain, added) in strong.ADDED.items():
        assert mixture[name] == mixture[plain] | {"algorithm": mixture[plain]["algorithm"] | added}
    for name, own in mixture.items():
        assert hot[name]["algorithm"] == own["algorithm"]
        assert hot[name]["optimizer"]["lr"] == pytest.approx(3 * own["optimizer"]["lr"])
    assert strong.judged("mixture", chosen) == mixture == strong.judged("unbounded", chosen)


def test_what_was_kept_is_known_again_where_there_are_no_files(tmp_path):
    study = strong.Study("strong", "strong_cell.py", strong.cells)
    study.results = tmp_path / "strong"
    for cell in strong.sweep():
        study.keep(cell, swept(cell))
    last = study.cells()[-1]
    study.keep(last, {"runs": []})
    study.pack()
    for file in (tmp_path / "strong" / "cells").iterdir():
        file.unlink()
    assert len(study.kept()) == 96 + 1 and study.cells() == strong.sweep()
    study.unpack()
    assert study.done(last) and len(study.cells()) == 96 + 64


SMALL = strong.merged(
    strong.RUN,
    {
        "train": {"steps": 2},
        "rollout": {"num_prompts": 8, "num_generations": 2, "max_completion_length": 16},
        "algorithm": {"mini_batches": 4},
    },
)


@pytest.fixture
def small(monkeypatch):
    """Short runs."""
    monkeypatch.setattr(strong, "COLD_START", 3)
    monkeypatch.setattr(strong, "RUN", SMALL)


def cell_of(*variants):
    return strong.RunsCell("int4", 0, chosen=json.dumps({name: strong.choices(name)[4] for name in variants}))


def test_a_cell(small, tmp_path):
    found = strong_cell.run_cell(cell_of("gspo auto", "gspo auto centred"), tmp_path)["runs"]
    assert [run["variant"] for run in found] == ["gspo auto", "gspo auto centred"]
    for run in found:
        assert -1 <= run["reward"] <= 1 and not run["collapsed"] and run["spike"] > 0
        assert run["steps"] == len(run["epsilon"]) == 2 and not run["lost"]
    assert found[0]["reward"] != found[1]["reward"]
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_what_a_run_of_a_cell_does_is_the_same_whatever_runs_before_it(small, tmp_path):
    variants = ["grpo", "gspo auto", "no ratio", "gspo auto centred"]
    found = strong_cell.run_cell(cell_of(*variants), tmp_path)["runs"]
    assert [run["variant"] for run in found] == variants
    assert found[0]["clipped"]["negative"] > 0 == found[2]["clipped"]["negative"]
    again = strong_cell.run_cell(cell_of("gspo auto", "gspo auto centred"), tmp_path)["runs"]
    assert again == [found[1], found[3]]


def test_a_run_that_ends_with_an_error_has_lost(small, tmp_path, monkeypatch):
    """Whatever reward it had reached."""
    monkeypatch.setattr(strong_cell.world, "worth", lambda prompts, completions, **columns: "nothing")
    cell = strong.RunsCell("mixture", 0, chosen=json.dumps({"gspo": strong.choices("gspo")[4]}))
    (run,) = strong_cell.run_cell(cell, tmp_path)["runs"]
    assert run["reward"] == run["mean"] == -1 and run["collapsed"] and run["lost"]


def test_p_values_are_students():
    for freedom in (2, 7, 30):
        assert strong_told.beyond(student(freedom), freedom) == pytest.approx(0.05, abs=5e-5)
        assert strong_told.quantile(0.05, freedom) == pytest.approx(student(freedom), abs=2e-3)
    assert strong_told.p_value([1.0, 2.0, 3.0]) == pytest.approx(0.0742, abs=1e-4)  # t = 2 sqrt(3), 2 degrees
    assert strong_told.p_value([0.0] * 4) == strong_told.p_value([1.0] * 4) == 1  # no noise is seen
    assert strong_told.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert strong_told.levels([0.01, 0.04, 0.03]) == pytest.approx([0.05 / 3, 0.05, 0.05 / 2])
    assert strong_told.found_by([-1.0, 0.0, 1.0], 0.05) == pytest.approx((4.303 + 1.061) / 3**0.5, abs=2e-3)


def results(reward):
    """Of all runs that are judged: the reward of a setting, a variant and a seed."""
    made = []
    for cell in strong.cells([swept(cell) for cell in strong.sweep()])[len(strong.sweep()) :]:
        line = {"reward": 0.1, "spike": 0.5, "collapsed": False, "clipped": {"negative": 0.5, "positive": 0.1}, "steps": 20}
        runs = [line | {"variant": name, "mean": reward(cell.setting, name, cell.seed)} for name, _ in cell.runs]
        made.append({"settings": cell.settings, "runs": runs})
    return made


def noise(setting, variant, seed):
    return float(np.random.default_rng([seed, len(setting), *variant.encode()]).normal(0, 0.01))


def verdicts(reward):
    lines = strong_told.claims(results(reward)).splitlines()
    return {line.strip("| ").split(" | ")[0]: line for line in lines[2 : lines.index("")]}


def test_claims_are_judged_together():
    def ahead_far(setting, variant, seed):
        return 0.1 * (setting in strong_told.FAR and "gspo" in variant) + noise(setting, variant, seed)

    lines = verdicts(ahead_far)
    assert len(lines) == len(strong_told.CLAIMS) + 1 == 8
    for other in ("grpo", "grpo_dual", "no ratio"):
        assert lines[f"gspo - {other}"].endswith("| 0.000 | above |")
    assert lines["gspo R2 - gspo"].endswith("| equal within 0.02 |")
    for name in ("grpo R2 - grpo", "gspo - grpo, mixtures less dense"):  # a claim that they differ is not settled so
        assert "not resolved; 8 seeds find 0.0" in lines[name]
    some = results(noise)
    assert strong_told.claims(some[:-1]).startswith("Not run") and strong_told.centring(some[:-1]).startswith("Not run")


def test_a_claim_with_a_choice_at_an_end_is_shown_and_not_judged():
    every = results(lambda setting, variant, seed: 0.1 * ("gspo" in variant) + noise(setting, variant, seed))
    for cell in every:
        if "dense" in cell["settings"]["setting"]:
            dict(cell["settings"]["runs"])["grpo"]["optimizer"]["lr"] = strong.RATES[-1]
    lines = strong_told.claims(every).splitlines()
    ended = {line.strip("| ").split(" | ")[0] for line in lines if "not judged: at an end of the sweep" in line}
    assert ended == {"gspo - grpo", "grpo_dual - grpo", "gspo - grpo, mixtures less dense"}  # replay: on mixtures alone
    for cell in every:
        for _, own in cell["settings"]["runs"]:
            own["optimizer"]["lr"] = strong.RATES[0] * (3 if "hot" in cell["settings"]["setting"] else 1)
    ended = strong_told.centring(every)
    assert ended.count("not judged: at an end of the sweep, not kept") == 1  # auto's rates go further down


def test_no_interval_leaves_what_can_be():
    wild = strong_told.claims(results(lambda setting, variant, seed: 1.0 if (seed + len(variant)) % 2 else -1.0))
    found = [float(each) for each in re.findall(r"[+-]?\d\.\d{3}(?=[],])", wild)]
    assert len(found) > 40 and 1.9 < max(map(abs, found)) <= 2.0


def test_it_is_the_mixture_that_is_helped_where_its_controls_are_not():
    def ahead_on_mixtures(setting, variant, seed):
        return 0.1 * ("dense" not in setting and "gspo" in variant) + noise(setting, variant, seed)

    assert verdicts(ahead_on_mixtures)["gspo - grpo, mixtures less dense"].endswith("| 0.000 | above |")


COUNTED = [name for name in strong.SETTINGS if name != "int4"]


@pytest.mark.parametrize(
    "gain, verdict",
    [
        ({}, "not resolved, not kept"),
        (dict.fromkeys(COUNTED, 0.05), "kept"),
        (dict.fromkeys(COUNTED, -0.05), "lost"),
        ({"int4": 0.5}, "not resolved, not kept"),  # shown, not counted
        ({"dense": 0.2, "unbounded dense": -0.2}, "not resolved, not kept"),
    ],
)
def test_centring_is_kept_where_it_wins(gain, verdict):
    def reward(setting, variant, seed):
        return (gain.get(setting, 0.0) if variant == "gspo centred" else 0.0) + noise(setting, variant, seed)

    fixed, auto = strong_told.centring(results(reward)).splitlines()[2:]
    assert fixed.endswith(f"| {verdict} |") and auto.endswith("| not resolved, not kept |")


def test_tables_show_choices_and_what_is_lost():
    every = results(noise)[:-8]
    for run in every[0]["runs"]:
        run |= {"reward": -1.0, "mean": -1.0, "collapsed": True, "spike": None, "clipped": None}
    table = strong_told.settings(every)
    assert "| gspo | 7 | 0.003 | 0.05 |" in table and "| no ratio | 7 | 0.0039 |  |" in table
    assert "| gspo auto centred | 7 | 0.0039 | auto | -0.1" in table and "50% / 10%" in table
    assert "| cispo | 7 | 0.009 | 5 |" in table  # hot
    own = strong.VARIANTS["gspo"]
    low, high = ({"optimizer": {"lr": rate}, "algorithm": each} for rate, each in ((3e-4, own[0]), (1e-1, own[-1])))
    assert strong_told.spell_choice("gspo", "dense", low) == ("0.0003*", "0.002*")
    assert strong_told.spell_choice("gspo", "dense", high) == ("0.1*", "none")  # nothing is wider
    hot = strong.judged("hot", {"mixture": dict.fromkeys(strong.variants("hot"), low)})
    assert strong_told.spell_choice("gspo R2", "hot", hot["gspo R2"]) == ("0.0009*", "0.002*")
    assert strong_told.settings([]).count("not run.") == 8


def test_endings_are_told_over_the_settings_that_a_variant_ran_in_the_best_first():
    def reward(setting, variant, seed):
        return {"no ratio": 0.9, "grpo": 0.4, "gspo R2": 0.6}.get(variant, 0.5) + 0.01 * (seed - 11.5)

    every = results(reward)
    for cell in every:
        for run in cell["runs"]:
            run["reward"] = 0.49 if run["variant"] == "grpo" and cell["settings"]["setting"] == "hot dense" else 0.5
    lines = strong_seen.endings(every).splitlines()
    assert len(lines) == 2 + len(strong.variants("mixture"))
    half = student(7) * 0.01 * 6**0.5 / 8**0.5  # 8 seeds of this spread: variance 6e-4
    assert lines[2] == f"| no ratio | all | 0 of 64 | 0.90 [{0.9 - half:.2f}, {0.9 + half:.2f}] |  |"
    assert lines[3].startswith("| gspo R2 | mixtures | 0 of 40 | 0.60 [") and lines[3].endswith("| +0.30 [+0.30, +0.30] |")
    assert lines[-1].startswith("| grpo | all | 8 of 64 | 0.40 [") and lines[-1].endswith("| +0.50 [+0.50, +0.50] |")
    assert strong_seen.endings(every[:-1]).startswith("Not run")


def test_the_sweep_is_told_by_rate_and_range():
    every = [swept(cell) for cell in strong.sweep()]
    for cell in every:
        own = cell["settings"]
        for run, (_, choice) in zip(cell["runs"], own["runs"]):
            run["mean"] = choice["optimizer"]["lr"] + choice["algorithm"].get("epsilon_high", 0) / 100 + (own["seed"] - 101)
    lines = strong_seen.sweeps(every).splitlines()
    assert lines[0] == "| model |  | rate | 0.002 | 0.01 | 0.05 | 0.2 | none |" and len(lines) == 2 + 2 * 2 * 6
    assert lines[7] == "| mixture | gspo | 0.1 | 0.10 | 0.10 | 0.10 | 0.10 | 10.10 |"  # the seeds' parts cancel
    assert lines[-2] == "| dense | gspo centred | 0.03 | 0.03 | 0.03 | 0.03 | 0.03 | 10.03 |"
    assert strong_seen.sweeps(every[1:]).startswith("Not run")


def test_the_page_has_all_tables():
    assert [name for _, name, _ in report.TRAINING.findall(report.MECHANISM.read_text())] == [*report.OF_TRAINING]
