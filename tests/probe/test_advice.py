"""What is recommended, by the rule that stands in probe/advice.py: one case a rule."""

import dataclasses

import numpy as np
import pytest

from gspo.config.policy import AlgorithmConfig
from gspo.learner.algorithm import resolve
from gspo.probe.advice import advise
from gspo.probe.candidates import YOURS, Candidate
from gspo.probe.measure import Age, Measured
from gspo.probe.merit import Products

D, M, R = 12, 24, 48
KEYS = ("sd_token", "sd_completion", "drift", "kl", "ess", "beyond_2x", "top", "tail")
RATIOS = {"sampler": dict.fromkeys(KEYS, 0.1) | {"kl": 1e-4}}


def candidate(name, offered=True, likelihoods="sampler", replay="none", algorithm="gspo"):
    return Candidate(name, resolve(AlgorithmConfig(name=algorithm))[1], likelihoods, replay, offered)


def found(right, candidates, ages=(0, 1), clipped=None, groups=M, spread=0.1, noise=None, seed=0, kl=0.0):
    """Candidates whose gradients are `right` times their factor, plus noise that all share."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(D)
    truth[0] = right
    r = truth + spread * rng.normal(size=(R, D))
    common = spread * rng.normal(size=(M, D))
    made = []
    for age in ages:
        of = {}
        for c, lean in candidates:
            turned = np.zeros(D)
            turned[0], turned[1] = lean * right, np.sqrt(1 - lean**2) * right
            g = turned + common + (noise or {}).get(c.name, 0.0) * rng.normal(size=(M, D))
            of[c.name] = Products(g @ g.T, g @ r.T, r @ r.T)
        shares = {c.name: (clipped or {}).get(c.name, (0.0, 0.0)) for c, _ in candidates}
        made.append(Age(age, RATIOS, [], None, None, None, shares, of if groups >= 8 else {}))
    floor = {"ratio/noise_floor": 0.0, "mismatch/kl": kl}
    return Measured([c for c, _ in candidates], made, groups, M, 9.0, 0.5, floor, {}, [])


YOU, OTHER = candidate(YOURS), candidate("other")


def test_a_better_one_is_recommended_with_its_numbers():
    advice = advise(found(1.0, [(YOU, 0.2), (OTHER, 0.98)]), 2, 4)
    assert advice.candidate is OTHER
    line = next(each for each in advice.lines if each.name == "other")
    assert line.against.resolved and line.against.low > 0.5
    assert f"{line.update.value:.3f}" in advice.reasons[0] and "against" in advice.reasons[0]


@pytest.mark.parametrize("updates, told", [(4, True), (5, False), (16, False)])
def test_beyond_four_updates_a_batch_it_measures_and_recommends_nothing(updates, told):
    advice = advise(found(1.0, [(YOU, 0.2), (OTHER, 0.98)], ages=(0, 1, updates - 1)), updates, 4)
    assert (advice.candidate is OTHER) == told and "goes further the right way" in advice.reasons[0]
    assert any(f"{updates} updates a batch" in reason for reason in advice.reasons) == (not told)
    assert told or advice.candidate is None


def test_where_completions_are_read_again_nothing_is_recommended():
    """In a second epoch a run trains on what has moved along its advantages, and the measured groups have not."""
    probed = found(1.0, [(YOU, 0.2), (OTHER, 0.98)], ages=(0, 1, 3))
    advice = advise(probed, 4, 4, epochs=2)
    assert advice.candidate is None and "goes further the right way" in advice.reasons[0]
    assert "reads each completion 2 times, and measured are completions that no update has read" in advice.reasons[-1]


@pytest.mark.parametrize("ages", [(0,), (0, 4), (0, 1, 2, 6)])
def test_without_the_last_age_that_the_run_trains_at_it_cannot_tell(ages):
    advice = advise(found(1.0, [(YOU, 0.2), (OTHER, 0.98)], ages=ages), 4, 4)
    assert advice.candidate is None
    (reason,) = advice.reasons
    measured = "age 0" if ages == (0,) else f"ages {', '.join(map(str, ages))}"
    assert f"measured at {measured}, and the run trains at ages 0, 1, 2, 3" in reason


def test_a_correction_that_is_left_out_is_named():
    own = Candidate(YOURS, resolve(AlgorithmConfig(correction="tis", old_logprobs="recompute"))[1], "recompute")
    advice = advise(found(1.0, [(own, 0.2), (OTHER, 0.98)]), 2, 4)
    assert advice.candidate is OTHER and 'algorithm.correction = "tis" was not measured' in advice.reasons[0]


@pytest.mark.parametrize(
    "sampler, recompute, told",
    [(2e-4, None, True), (3e-4, None, False), (3e-3, 1e-4, True), (3e-3, 3e-4, False)],
    ids=["near", "far", "a coarse sampler, near", "a coarse sampler, far"],
)
def test_where_the_policy_moves_far_within_a_batch_nothing_is_recommended(sampler, recompute, told):
    """What counts is how it moves before the last update that the run makes; a sampler's error is no movement."""
    probed = found(1.0, [(YOU, 0.2), (OTHER, 0.98)], ages=(0, 1, 3, 6))
    for age in probed.ages:
        age.ratios = {"sampler": RATIOS["sampler"] | {"kl": {3: sampler, 6: 1.0}.get(age.age, 0.0)}}
        if recompute is not None:
            age.ratios["recompute"] = RATIOS["sampler"] | {"kl": {3: recompute, 6: 1.0}.get(age.age, 0.0)}
    advice = advise(probed, 4, 4)
    assert (advice.candidate is OTHER) == told and "goes further the right way" in advice.reasons[0]
    assert any("moves by 3.0e-04 nats a token, and beyond 2e-04" in reason for reason in advice.reasons) == (not told)


def test_what_is_as_good_is_kept():
    advice = advise(found(1.0, [(YOU, 0.97), (OTHER, 0.98)], noise={"other": 0.3, YOURS: 0.3}), 2, 4)
    assert advice.candidate is YOU and "No candidate is better than your settings beyond noise" in advice.reasons[0]
    assert not any(each in advice.reasons[0] for each in ("goes further", "cannot tell"))


def test_the_cheapest_of_those_that_are_as_good():
    dear, cheap = candidate("dear", replay="R2"), candidate("cheap")
    advice = advise(found(1.0, [(YOU, 0.2), (dear, 0.99), (cheap, 0.985)]), 2, 4)
    assert advice.candidate is cheap
    assert "cannot tell it from dear" in advice.reasons[-1]


def test_ones_own_algorithm_before_another_that_is_as_good():
    foreign, wider = candidate("foreign", algorithm="cispo"), candidate("wider")
    assert advise(found(1.0, [(YOU, 0.2), (foreign, 0.99), (wider, 0.985)]), 2, 4).candidate is wider
    assert advise(found(1.0, [(YOU, 0.2), (foreign, 0.99), (wider, 0.5)]), 2, 4).candidate is foreign


def test_a_yardstick_is_never_recommended():
    advice = advise(found(1.0, [(YOU, 0.2), (candidate("free", offered=False), 1.0), (OTHER, 0.6)]), 2, 4)
    assert advice.candidate is OTHER


def test_a_clip_that_rounding_decides_is_never_as_good():
    advice = advise(found(1.0, [(YOU, 0.9), (OTHER, 0.8)], clipped={YOURS: (0.4, 0.0)}), 2, 4)
    assert advice.candidate is OTHER
    assert "Rounding decides" in advice.reasons[0] and "numerics alone clip 20.0%" in advice.reasons[0]
    assert "is recommended in place of your settings" in advice.reasons[1] and "goes further" not in advice.reasons[1]


@pytest.mark.parametrize("kl, told", [(1e-6, "grpo"), (1e-4, "grpo, recomputed")])
def test_a_clip_of_single_tokens_is_not_recommended_on_a_coarse_samplers_likelihoods(kl, told):
    """Nor kept: GRPO broke down on those of an int4 sampler, and its gradients had not foretold it."""
    engine = candidate("grpo", algorithm="grpo")
    again = candidate("grpo, recomputed", algorithm="grpo", likelihoods="recompute")
    advice = advise(found(1.0, [(YOU, 0.2), (engine, 0.98), (again, 0.9)], kl=kl), 2, 4)
    assert advice.candidate is not None and advice.candidate.name == told
    own = dataclasses.replace(engine, name=YOURS)
    advice = advise(found(1.0, [(own, 0.98), (again, 0.9)], kl=kl), 2, 4)
    assert (advice.candidate is own) == (told == "grpo")
    assert ("differs from the trainer by 1.0e-04 nats" in advice.reasons[0]) == (told != "grpo")


@pytest.mark.parametrize("groups", [0, 7])
def test_too_few_groups_that_teach_recommend_nothing_and_the_rest_is_there(groups):
    advice = advise(found(1.0, [(YOU, 0.2), (OTHER, 0.9)], groups=groups, clipped={YOURS: (0.2, 0.1)}), 2, 4)
    assert advice.candidate is None and f"{groups} of {M} groups teach" in advice.reasons[0]
    assert [line.low for line in advice.lines] == [0.2, 0.0] and np.isnan(advice.lines[0].update.value)


def test_a_right_gradient_of_noise_recommends_nothing():
    advice = advise(found(0.0, [(YOU, 0.2), (OTHER, 0.9)], spread=1.0), 2, 4)
    assert advice.candidate is None and "cannot be told from noise" in advice.reasons[0]


def test_only_the_ages_that_the_run_trains_at_count():
    """From age 2 on everything is turned round: a run of two updates a batch does not see it."""
    near = found(1.0, [(YOU, 0.5), (OTHER, 0.98)])
    far = found(1.0, [(YOU, 0.98), (OTHER, 0.1)], ages=(2, 3))
    both = dataclasses.replace(near, ages=near.ages + far.ages)
    assert advise(both, 2, 4).candidate is OTHER
    assert advise(both, 4, 4).candidate is YOU


def test_one_that_is_only_as_good_as_the_best_by_its_noise_is_not_recommended():
    """A cheap one with a wide interval must be better than the run's own settings itself."""
    wild = candidate("wild")
    measured = found(1.0, [(YOU, 0.75), (candidate("dear", replay="R2"), 0.98), (wild, 0.75)], noise={"wild": 0.6})
    advice = advise(measured, 2, 4)
    assert advice.candidate.name == "dear"


def test_of_many_that_are_equal_none_is_better():
    many = [(candidate(f"c{i}"), 0.8) for i in range(12)]
    better = 0
    for seed in range(20):
        measured = found(1.0, [(YOU, 0.8), *many], noise={YOURS: 0.5} | {f"c{i}": 0.5 for i in range(12)}, seed=seed)
        better += advise(measured, 2, 4).candidate is not YOU
    assert better <= 3


def test_a_yardstick_of_ones_own_is_told_so():
    advice = advise(found(1.0, [(candidate(YOURS, offered=False), 0.99), (OTHER, 0.6)]), 2, 4)
    assert advice.candidate is OTHER and "Nothing bounds the updates of your settings" in advice.reasons[0]
    assert "is recommended in place of" in advice.reasons[1]


def test_a_range_that_sets_itself_is_never_too_narrow_for_rounding():
    auto = candidate("auto")
    auto = dataclasses.replace(auto, algorithm=dataclasses.replace(auto.algorithm, epsilon="auto"))
    advice = advise(found(1.0, [(YOU, 0.2), (auto, 0.98), (OTHER, 0.5)], clipped={"auto": (0.04, 0.0)}), 2, 4)
    assert advice.candidate is auto
