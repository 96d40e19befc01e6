"""What a probe measures of a tiny model: where the answer is known."""

import numpy as np
import pytest
from dials import dialled
from probe.candidates import YOURS
from probe.measure import FEWEST, ProbePlan, measure
from probe.walk import probed

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import CallInputs
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.algorithm import resolved
from gspo.config.files import as_config
from tests.tiny_run import PIECES, ROWS, likes_a, model, settings

GIVEN = {"model": {"path": "given", "device": "cpu"}, "task": {"source": "given"}}
PLAN = ProbePlan(12, 8, (0, 3), 4, 1)


def probe(folder, tiny=None, reward=likes_a, plan=PLAN, **changes):
    tiny = tiny or model()
    config, _ = resolved(as_config(settings(folder, **changes) | GIVEN, {}))
    with training(probed(config, folder), given=CallInputs(tiny.model, tiny.tokenizer, ROWS, None, [reward])) as (run, _):
        *_, found = measure(run, plan)
    return found


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


def test_an_exact_sampler_leaves_one_kind_of_likelihoods(exact):
    assert {candidate.likelihoods for candidate in exact.candidates} == {"sampler"}
    assert {candidate.replay for candidate in exact.candidates} == {"none", "R2"}  # R3 would be the same
    assert exact.notes == []


def test_experts_change_and_replay_takes_their_part_of_the_spread(exact):
    first, last = exact.ages
    assert first.volatility == 0 < last.volatility < 1
    assert first.agreement > 0.99 > last.agreement > 0  # an exact sampler chooses as the policy does
    assert 0 < last.ratios["R2"]["sd_token"] < 1.5 * last.ratios["sampler"]["sd_token"]
    assert first.ratios["R2"]["sd_token"] < 1e-5


def test_a_range_that_sets_itself_is_that_of_a_step(exact):
    """It was set on other groups, over all ages of a step: so over the ages it clips about its target of 15 %."""
    low, high = exact.clip["gspo auto"]
    assert high / low == pytest.approx(4 / 3) and exact.clip[YOURS] == (3e-4, 4e-4)
    assert 1e-4 < low < 0.5
    last = exact.ages[-1].clipped["gspo auto"]
    assert 0.02 < sum(last) < 0.9


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


def test_a_reward_that_changes_with_the_step_is_that_of_the_step(tmp_path):
    """Warm steps see 0 and 1 steps done; all that is measured sees 2, at each age, of the 8 that the run would have."""
    seen = []

    def reward(prompts, completions, trainer_state, **columns):
        seen.append((trainer_state.global_step / trainer_state.max_steps, len(completions)))
        return likes_a(prompts, completions, **columns)

    probe(tmp_path, reward=reward, plan=ProbePlan(12, 8, (0, 3), 4, 2), train={"steps": 8})
    steps = [step for step, _ in seen]
    assert steps[0] == 0 and {1 / 8, 2 / 8} < set(steps) and max(steps) == 2 / 8
    measured = [step for step, count in seen[len(seen) // 2 :] if count in (12 * 4, 8 * 4)]
    assert measured and set(measured) == {2 / 8}


def test_equal_rewards_leave_the_parts_that_need_no_gradient(tmp_path):
    found = probe(tmp_path, reward=lambda prompts, completions, **columns: [1.0] * len(completions))
    assert found.groups == 0 and "0 of 12 measured groups have rewards that differ" in found.notes[0]
    assert all(age.products == {} for age in found.ages)
    assert [age.ratios["sampler"]["ess"] for age in found.ages] == pytest.approx([1, 1])
    assert set(found.ages[-1].clipped) == {candidate.name for candidate in found.candidates}


def test_equal_rewards_of_an_algorithm_that_drops_such_groups_leave_age_0(tmp_path):
    """It makes no update, so nothing grows old."""
    found = probe(
        tmp_path, algorithm={"name": "dapo"}, reward=lambda prompts, completions, **columns: [1.0] * len(completions)
    )
    assert [age.age for age in found.ages] == [0] and found.ages[0].ratios["sampler"]["ess"] == pytest.approx(1)
    assert "11 batches in a row had no group to train on" in found.notes[-1] and "beyond 0 were not" in found.notes[-1]


def test_a_dense_model_says_that_it_has_no_experts(tmp_path):
    shape = tiny_qwen3_moe(hidden=32, heads=2, kv_heads=1, context=64) | {"model_type": "qwen3"}
    dense = build_tiny(shape, longest_match_tokenizer(PIECES), 0)
    found = probe(tmp_path, tiny=dense, plan=ProbePlan(FEWEST, 8, (0,), 1, 1))
    assert "the model has no experts" in found.notes[-1]
    assert (
        found.ages[0].volatility is None
        and found.ages[0].agreement is None
        and {c.replay for c in found.candidates} == {"none"}
    )


def test_checkpointed_layers_replay_in_each_backward_pass(tmp_path):
    plan = ProbePlan(FEWEST, 8, (0,), 1, 1)
    plain, checkpointed = (
        probe(tmp_path / str(on), plan=plan, train={"gradient_checkpointing": on, "seed": 1}) for on in (False, True)
    )
    for name, products in plain.ages[0].products.items():
        np.testing.assert_allclose(products.own, checkpointed.ages[0].products[name].own, rtol=1e-3, atol=1e-4)


def test_refilled_batches_are_measured_by_groups_that_teach(tmp_path):
    def rare(prompts, completions, **columns):
        return [float("ab" in c) for c in completions]

    found = probe(
        tmp_path, reward=rare, plan=ProbePlan(16, 8, (0,), 1, 1, teaching=True), rollout={"dynamic_sampling_rounds": 3}
    )
    assert found.groups == found.of < 16 or found.of == 16
    assert any("refills its batches" in note for note in found.notes)


def test_rewards_that_all_fail_end_it_with_their_own_error(tmp_path):
    def broken(prompts, completions, **columns):
        raise ZeroDivisionError("my own bug")

    with pytest.raises(RuntimeError, match="my own bug"):
        probe(tmp_path, reward=broken)
