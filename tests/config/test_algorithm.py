import re

import pytest

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.objective.algorithms import ALGORITHMS


def test_the_preset_is_the_papers():
    row, config, warnings = resolve(AlgorithmConfig())
    assert (row.level, row.counts, warnings) == ("sequence", "completions", [])
    assert (config.name, config.epsilon, config.epsilon_high, config.mini_batches) == ("gspo", 3e-4, 4e-4, 4)
    assert (config.scale_rewards, config.beta, config.epochs) == ("group", 0.0, 1)


def test_constants_of_a_row_can_be_changed():
    _, auto, _ = resolve(AlgorithmConfig(epsilon="auto"))
    assert resolve(auto)[1] == auto and (auto.epsilon, auto.epsilon_high) == ("auto", None)
    _, config, _ = resolve(AlgorithmConfig(name="sapo", constants={"tau_neg": 1.2}))
    assert config.constants == {"tau_pos": 1.0, "tau_neg": 1.2}
    assert ALGORITHMS["sapo"].constants["tau_neg"] == 1.05
    assert resolve(AlgorithmConfig(name="ppo", constants={"lam": 0}))[1].constants["lam"] == 0
    assert resolve(config)[1] == config  # what was resolved stays


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_resolves_to_its_own_defaults(name):
    row, config, _ = resolve(AlgorithmConfig(name=name))
    assert (config.epsilon, config.epsilon_high) == (row.epsilon, row.epsilon_high)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.1}, "set algorithm.epsilon_high too"),
        ({"epsilon_high": 0.1}, "set algorithm.epsilon too"),
        ({"name": "dr_grpo", "scale_rewards": "group"}, "no longer dr_grpo"),
        ({"name": "minirl", "scale_rewards": "group"}, "no longer minirl"),
        ({"name": "sapo", "epsilon": 0.2, "epsilon_high": 0.2}, r"sapo has no clip range.*tau_pos.*algorithm\.constants"),
        ({"name": "cispo", "epsilon": "auto"}, "cispo has no clip range"),
        ({"epsilon": "auto", "epsilon_high": 0.1}, "sets both ends"),
        ({"epsilon_high": 4e-4, "name": "gmpo"}, "gmpo has no clip range"),
        ({"constants": {"tau": 1.0}}, "gspo has no constant 'tau'; it has none"),
        ({"name": "sapo", "constants": {"tau_poss": 1.0}}, "did you mean tau_pos"),
        ({"name": "sapo", "constants": {"tau_pos": 0}}, "tau_pos = 0: must be above 0"),
        ({"name": "sapo", "constants": {"tau_pos": "1"}}, "must be a finite number"),
        ({"name": "sapo", "constants": {"tau_pos": True}}, "must be a finite number"),
        ({"name": "cispo", "constants": {"w_max": float("inf")}}, "must be a finite number"),
        (
            {"name": "grpo_dual", "constants": {"clip_c": 1.27}},
            r"clip_c = 1.27: must be above 1.27 \(1 \+ algorithm",
        ),
        ({"name": "grpo_dual", "constants": {"clip_c": 0.9}}, r"clip_c = 0.9.*raise it \(grpo_dual's own is 3\)"),
        ({"name": "grpo_dual", "epsilon": 0.2, "epsilon_high": 2.5}, "clip_c = 3.0: must be above 3.5"),
        ({"name": "grpo_dual", "epsilon": "auto", "constants": {"clip_c": 1.6}}, "must be above 1.675.*auto"),
        ({"name": "reinforce", "epsilon": 0.2, "epsilon_high": 0.2}, "reinforce has no clip range"),
        ({"name": "reinforce", "constants": {"w_max": 5.0}}, "no constant 'w_max'; it has none"),
        ({"name": "ppo", "constants": {"lam": 1.1}}, "lam = 1.1: must be 0 to 1"),
        ({"name": "ppo", "critic": "none"}, "ppo learns from values and needs a critic"),
        ({"critic": "shared"}, "gspo has no use for one"),
        ({"name": "ppo", "constants": {"lamda": 0.9}}, "its own are gamma, lam, e_value, c_value, did you mean lam"),
        ({"correction": "tis"}, "every weight is 1.*recompute"),
        ({"name": "minirl", "correction": "tis", "old_logprobs": "recompute"}, "minirl weighs by pi_theta/mu.*twice"),
        ({"name": "dppo_tv", "correction": "icepop", "old_logprobs": "recompute"}, "dppo_tv weighs by pi_theta/mu"),
    ],
)
def test_what_is_no_longer_the_algorithm_is_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        resolve(AlgorithmConfig(**settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.2, "epsilon_high": 0.2}, "never binds"),
        ({"name": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}, "takes away most gradients"),
        ({"scale_rewards": "none"}, "divides by the group standard deviation"),
        ({"mini_batches": 1}, "nothing is ever clipped"),
        ({"name": "dapo"}, "refills"),
        ({"beta": 0.1, "kl_estimator": "k1"}, "zero gradient"),
        ({"name": "grpo", "epsilon": "auto"}, "far tighter than usual"),
        ({"name": "dppo_kl", "old_logprobs": "recompute"}, "divides by mu alone.*changes no gradient"),
        ({"name": "reinforce", "old_logprobs": "recompute"}, "has no ratio.*changes no gradient"),
    ],
)
def test_odd_values_are_warned_of(settings, message):
    _, _, warnings = resolve(AlgorithmConfig(**settings))
    assert any(re.search(message, warning) for warning in warnings)


def test_a_correction_gives_the_pass_for_pi_old_its_use():
    assert resolve(AlgorithmConfig(name="reinforce", correction="tis", old_logprobs="recompute"))[2] == []


def test_the_dual_clip_may_stand_close_to_the_range():
    config = AlgorithmConfig(name="grpo_dual", constants={"clip_c": 1.28})
    assert resolve(config)[1].constants == {"clip_c": 1.28} and ALGORITHMS["grpo_dual"].constants == {"clip_c": 3.0}
    assert resolve(AlgorithmConfig(name="grpo_dual", epsilon="auto", clip_target=0.01))[2] == []


def test_dapo_with_its_refill_is_not_warned_of():
    assert resolve(AlgorithmConfig(name="dapo"), refill=1)[2] == []


def test_a_served_run_is_not_told_of_settings_that_it_may_not_set():
    assert resolve(AlgorithmConfig(name="dapo"), samples=False)[2] == []
