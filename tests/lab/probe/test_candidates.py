"""What is compared."""

import dataclasses

import pytest
from probe.candidates import YARDSTICKS, YOURS, candidates, named

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.config.schema import Config


def config(**algorithm):
    return dataclasses.replace(Config(), algorithm=resolve(AlgorithmConfig(**algorithm))[1])


def test_the_runs_own_come_first_and_nothing_twice():
    found = candidates(config(), ["sampler"], ["none"])
    assert found[0].name == YOURS and found[0].settings()["name"] == "gspo"
    assert len({c.name for c in found}) == len(found)
    assert all(c.settings() != found[0].settings() for c in found[1:])
    assert "gspo 0.0003" not in {c.name for c in found} and "gspo auto" in {c.name for c in found}


def test_yardsticks_are_shown_and_never_offered():
    offered = {c.algorithm.name: c.offered for c in candidates(config(), ["sampler"], ["none"])}
    assert [name for name, yes in offered.items() if not yes] == [*YARDSTICKS]
    assert not candidates(config(name="reinforce"), ["sampler"], ["none"])[0].offered


OWN = {"old_logprobs": "recompute"}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"name": "grpo"},
        {"name": "dr_grpo"},
        OWN | {"correction": "tis"},
        {"epsilon": "auto"},
        {"name": "sapo", "constants": {"tau_neg": 1.3}},
    ],
)
def test_the_settings_make_the_same_algorithm(own):
    for candidate in candidates(config(**own), ["sampler", "recompute"], ["none", "R2", "R3"]):
        again = resolve(AlgorithmConfig(**candidate.settings()))[1]
        assert named(again) == named(candidate.algorithm)
        assert again.constants == candidate.algorithm.constants and again.epsilon_high == candidate.algorithm.epsilon_high
        auto = own.get("old_logprobs", "auto") == "auto" and candidate.likelihoods == "sampler"  # the run decides anew
        assert again.old_logprobs == ("auto" if auto else candidate.likelihoods)
        assert again.router_replay == candidate.replay
        assert again.scale_rewards == candidate.scale and again.correction == "none"


def test_likelihoods_and_replay_only_where_they_can_be_told_apart():
    plain = {c.name for c in candidates(config(), ["sampler"], ["none"])}
    assert not any("recomputed" in name or "+ R" in name for name in plain)
    every = {c.name for c in candidates(config(), ["sampler", "recompute"], ["none", "R2", "R3"])}
    assert {"gspo auto, recomputed", "gspo auto + R2", "grpo 0.2 + R3"} <= every
    assert not {"dppo_tv, recomputed", "reinforce, recomputed"} & every  # they do not divide by pi_old


def test_the_runs_own_likelihoods_are_those_that_it_has_decided_for():
    found = candidates(config(), ["sampler", "recompute"], ["none"], "recompute")
    assert found[0].likelihoods == "recompute" and "gspo 0.0003" in {c.name for c in found}
    assert candidates(config(), ["sampler"], ["none"], "recompute")[0].likelihoods == "sampler"  # they say the same


def test_replay_of_a_samplers_choices_that_are_the_policys_is_measured_as_that_of_the_policys():
    own = {"router_replay": "R3"}
    found = candidates(config(**own), ["sampler"], ["none", "R2"])
    assert found[0].replay == "R2" and "gspo 0.0003" in {c.name for c in found}
    assert candidates(config(**own), ["sampler"], ["none", "R2", "R3"])[0].replay == "R3"
    assert candidates(config(**own), ["sampler"], ["none"])[0].replay == "none"


def test_a_scale_of_the_users_is_kept_where_a_row_allows_it():
    found = {c.name: c.scale for c in candidates(config(scale_rewards="none"), ["sampler"], ["none"])}
    assert found["grpo 0.2"] == "none"
    assert {c.family for c in candidates(config(), ["sampler"], ["none"])} == {"mean group", "sum group"}


def test_credit_by_turn_leaves_the_rows_that_have_it():
    found = candidates(config(name="gspo_token", credit="turn"), ["sampler"], ["none"])
    assert {c.algorithm.name for c in found} == {"gspo_token", "gspo_turn", "grpo"}
    assert all(c.row.by_turn for c in found)
