"""What a user of ART gives to `train`: taken, or refused with the field that has it here."""

from types import SimpleNamespace

import pytest

import gspo
from gspo.agents.art_compat import ELSEWHERE, settings
from gspo.config.names import all_keys


def test_what_is_taken():
    assert settings(None, {}) == gspo.TrainCall()
    assert settings(gspo.TrainCall(1e-5, "turn"), {}) == gspo.TrainCall(1e-5, "turn")
    art = SimpleNamespace(learning_rate=5e-6, kl_penalty_coef=0.0)
    assert settings(art, {"_config": {"importance_sampling_level": "sequence"}, "verbose": False}) == gspo.TrainCall(
        5e-6, "sequence"
    )
    assert settings(None, {"learning_rate": 1e-4, "ppo": False}) == gspo.TrainCall(1e-4)
    assert settings(art, {"learning_rate": 1e-4}).learning_rate == 1e-4


def test_the_old_name_says_the_new_one():
    with pytest.raises(AttributeError, match=r"gspo\.TrainCall"):
        gspo.TrainConfig  # noqa: B018


def test_what_is_refused():
    for given, why in (
        ({"_config": {"epsilon": 0.2}}, r"epsilon = 0.2: .* the run has it as algorithm\.epsilon"),
        ({"kl_penalty_coef": 0.1}, r"algorithm\.beta"),
        ({"learning_rate": float("nan")}, "above 0 and at most 1"),
    ):
        with pytest.raises(ValueError, match=why):
            settings(None, given)
    with pytest.raises(TypeError, match="no argument 'kimi_k2_tau': it takes learning_rate, importance_sampling_level"):
        settings(None, {"_config": {"kimi_k2_tau": 1.0}})


def test_the_fields_that_are_named_exist():
    keys = set(all_keys())
    named = {where.partition(",")[0] for _, where in ELSEWHERE.values()}
    assert {name for name in named if name.partition(".")[0] in ("algorithm", "train")} <= keys
