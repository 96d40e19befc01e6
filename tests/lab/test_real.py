"""The study on a pretrained model: the manipulation check, the rule for the rates, and the planned comparisons."""

import json
import math

import pytest
import real
import real_lengths


def run(arm="GSPO", rate=1e-5, seed=0, **own):
    return {"arm": arm, "rate": rate, "seed": seed, "mean": 0.5, "accuracy": 0.5, "broke": False} | own


def test_the_drift_is_that_of_all_tokens_of_a_step(tmp_path):
    rows = [(1, [0.0, 0.2]), (1, [-0.2, None]), (2, [0.1, 0.1]), (2, None), (3, [0.5])]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(json.dumps({"step": step, "log_ratio": each}) + "\n" for step, each in rows))
    first, second = real.drift_of(path)  # one token has no spread
    assert first == pytest.approx((0.2, (math.expm1(0.2) + math.expm1(-0.2)) / 3))
    assert second == pytest.approx((0.0, math.expm1(0.1) - 0.1))


@pytest.mark.parametrize(
    ("pilot", "rate"),
    [
        ([(1e-5, 0.09, 0.01), (2e-5, 0.1, 3e-3), (4e-5, 0.2, 0.1)], 2e-5),
        ([(1e-5, 0.3, 0.002), (2e-5, 0.09, 0.01)], None),  # each passes only half of it
        ([], None),
    ],
)
def test_the_lowest_rate_passes_both_halves_of_the_manipulation_check(pilot, rate):
    assert real.lowest([run(rate=lr, spread=spread, kl=kl) for lr, spread, kl in pilot]) == rate


def test_a_rate_is_chosen_by_its_worse_seed_and_on_a_tie_the_lower():
    sweep = [(1e-5, 0.5), (1e-5, 0.5), (2e-5, 0.9), (2e-5, 0.1), (4e-5, 0.5), (4e-5, 0.6)]
    assert real.choose([run(rate=rate, mean=mean) for rate, mean in sweep] + [run("GRPO", 8e-5, mean=1.0)], "GSPO") == 1e-5


def test_the_power_is_that_of_the_chosen_rates_and_of_all():
    sweep = [run(rate=rate, mean=mean) for rate, mean in [(1e-6, 0.4), (1e-6, 0.6), (2e-6, 0.5), (2e-6, 0.5)]]  # .02 and 0
    said = real.power(sweep, {"GSPO": 1e-6})
    one = real.reach(8, 0.05)
    assert f"difference of {one * 0.2:.3f} in" in said and said.endswith(f"all rates, {one * math.sqrt(0.02):.3f}")


@pytest.mark.parametrize(
    ("one", "other", "p"),
    [([1, 1, 1, 0], [0, 0, 0, 0], 0.25), ([1, 0], [0, 1], 1.0), ([1, 0], [1, 0], 1.0), ([1] * 8, [0] * 8, 2 / 2**8)],
)
def test_mcnemar_counts_what_differs(one, other, p):
    assert real.mcnemar(one, other) == pytest.approx(p)


def test_the_comparisons_are_paired_and_say_what_they_allow():
    of_seeds = [0.3, -0.3, 0.1, -0.1, 0.2, -0.2, 0.0, 0.05]  # common to the arms, so that it is no noise of a difference
    means = {"GSPO": lambda seed: 0.5 + seed / 1000, "GRPO": lambda seed: 0.5, "no ratio": lambda seed: 0.2 - seed / 1000}
    done = [
        run(arm, seed=seed, mean=mean(seed) + x, broke=arm == "no ratio" and seed < 2)
        for arm, mean in means.items() for seed, x in enumerate(of_seeds)
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in real.verdicts(done).splitlines()[2:5]]
    assert [row[4] for row in rows] == ["alike within 0.03", "higher", "higher"]
    assert rows[0][:3] == ["GSPO - GRPO", "8", "+0.004 [+0.001, +0.006]"]
    assert rows[2][6:] == ["0, 2", "0.50"]


def test_the_sweep_is_a_study_whose_arms_differ_only_in_algorithm_and_rate(tmp_path, monkeypatch):
    (tmp_path / "real_base.toml").write_text((real.HERE / "real_base.toml").read_text())
    monkeypatch.setattr(real, "HERE", tmp_path)
    monkeypatch.chdir(real.RESULTS.parents[2])
    monkeypatch.syspath_prepend(str(real.RESULTS.parents[2]))
    real.study_file("real_sweep", {arm: [1e-5, 2e-5] for arm in real.ARMS}, [0, 1])
    cells = real.cells_of("real_sweep")
    assert len(cells) == 12
    assert {cell.config.algorithm.name for cell in cells} == {"gspo", "grpo", "reinforce"}
    assert {(cell.config.algorithm.epochs, cell.config.algorithm.mini_batches) for cell in cells} == {(4, 4)}


def test_exponents_are_those_of_power_laws_in_the_length():
    runs = {
        (f"{length} tokens", "auto"): {
            seed: {"length": length * (1 + seed), "range": 0.1 * length**-0.5, "spread": 0.01 * length**-0.3}
            for seed in (0, 1)
        }
        for length in (16, 64, 256)
    }
    runs["16 tokens", "3e-3"] = {}
    assert real_lengths.exponents(runs, "range") == pytest.approx([-0.5, -0.5])
    assert real_lengths.exponents(runs, "spread") == pytest.approx([-0.3, -0.3])
    del runs["256 tokens", "auto"][1]
    assert len(real_lengths.exponents(runs, "range")) == 1


def test_the_study_of_lengths_has_the_runs_of_its_plan(monkeypatch):
    monkeypatch.chdir(real.RESULTS.parents[2])
    monkeypatch.syspath_prepend(str(real.RESULTS.parents[2]))
    cells = real.cells_of(real_lengths.NAME)
    assert len(cells) == 5 * (6 + 6 + 1)
    assert {cell.config.rollout.max_completion_length for cell in cells} == {16, 64, 256}
