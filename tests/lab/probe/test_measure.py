"""What a probe measures of a tiny model: where the answer is known."""

import numpy as np
import pytest
from dials import dialled
from probe.candidates import YOURS, candidates
from probe.measure import ProbePlan, measure
from probe.walk import probed

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import CallInputs
from gspo.config.algorithm import resolved
from gspo.config.files import as_config
from tests.tiny_run import ROWS, likes_a, model, settings

GIVEN = {"model": {"path": "given", "device": "cpu"}, "task": {"source": "given"}}
PLAN = ProbePlan(12, 8, (0, 3), 4, 1)


def probe(folder, tiny=None, reward=likes_a, plan=PLAN, **changes):
    tiny = tiny or model()
    config, _ = resolved(as_config(settings(folder, **changes) | GIVEN, {}))
    with training(probed(config, folder), given=CallInputs(tiny.model, tiny.tokenizer, ROWS, None, [reward])) as (run, _):
        *_, found = measure(run, plan)
    return found


def test_a_range_by_length_stays_with_the_users_own_algorithm(tmp_path):
    """Most of the others would refuse it."""
    config, _ = resolved(as_config(settings(tmp_path, algorithm={"epsilon_length": 9}) | GIVEN, {}))
    own, *others = candidates(config, ["sampler"], ["none"])
    assert own.algorithm.epsilon_length == 9 and {c.algorithm.epsilon_length for c in others} == {None}


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    return probe(tmp_path_factory.mktemp("exact"), algorithm={"epsilon": 3e-4, "epsilon_high": 4e-4})


def test_where_nothing_has_moved_a_family_is_one(exact):
    """At age 0 an exact sampler's ratios are 1: every objective has the gradient of its family, none is clipped."""
    first = exact.ages[0]
    by_family = {}
    for candidate in exact.candidates:
        same = by_family.setdefault(candidate.family, first.products[candidate.name])
        np.testing.assert_allclose(first.products[candidate.name].own, same.own, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(first.products[candidate.name].cross, same.cross, rtol=1e-3, atol=1e-6)
        assert sum(first.clipped[candidate.name]) <= 0.06
    assert set(by_family) == {"mean group", "sum group"}


def test_after_updates_they_part_and_the_noise_is_that_of_the_sampler(exact):
    first, last = exact.ages
    assert exact.floor["ratio/noise_floor"] < 1e-5 < last.ratios["sampler"]["sd_completion"]
    assert first.ratios["sampler"]["sd_token"] < 1e-5 < last.ratios["sampler"]["sd_token"]
    assert sum(last.clipped[YOURS]) > 0.5  # the paper's range, at a learning rate for tiny models
    narrow, wide = (np.diag(last.products[name].own) for name in (YOURS, "reinforce"))
    assert narrow.sum() < 0.8 * wide.sum()  # what is clipped has no gradient


def test_a_coarse_sampler_has_both_kinds_of_likelihoods(tmp_path):
    found = probe(tmp_path, sampler=dialled("int4"), algorithm={"old_logprobs": "auto"}, plan=ProbePlan(9, 8, (0, 1), 2, 1))
    names = {candidate.name for candidate in found.candidates}
    assert {"gspo 0.03", "gspo 0.03, recomputed", "gspo auto + R3"} <= names
    first = found.ages[0]
    assert found.floor["mismatch/kl"] > 1e-6 and first.ratios["sampler"]["sd_token"] > 1e-4
    assert first.ratios["recompute"]["sd_token"] == 0.0
    assert first.volatility == 0 and first.agreement < 1  # the policy's own choice is the one that volatility counts from
    narrow = next(c for c in found.candidates if c.algorithm.epsilon == 3e-4 and c.likelihoods == "sampler")
    assert sum(first.clipped[narrow.name]) > 0.1  # by numerics alone
    for kind in ("R2", "R3"):  # pi_old is read with the experts that updates replay
        assert first.ratios[kind]["sd_token"] < 1e-5
    assert sum(first.clipped["gspo auto + R3"]) < 0.1
    assert found.candidates[0].likelihoods == "recompute"  # "auto" saw it


def test_equal_rewards_leave_the_parts_that_need_no_gradient(tmp_path):
    found = probe(tmp_path, reward=lambda prompts, completions, **columns: [1.0] * len(completions))
    assert found.groups == 0 and "0 of 12 measured groups have rewards that differ" in found.notes[0]
    assert all(age.products == {} for age in found.ages)
    assert [age.ratios["sampler"]["ess"] for age in found.ages] == pytest.approx([1, 1])
    assert set(found.ages[-1].clipped) == {candidate.name for candidate in found.candidates}
