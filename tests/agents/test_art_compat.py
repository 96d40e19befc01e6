"""What a user of ART gives to `train`: taken, or refused with the field that has it here."""

from types import SimpleNamespace

import pytest

import gspo
from gspo.agents.art_compat import ELSEWHERE, NOTHING, adapters, in_arts_names, settings
from gspo.config.names import all_keys


def test_a_value_without_effect_is_taken_and_any_other_refused_by_name():
    """tests/serving/test_art.py compares them with ART's own."""
    for name, (neutral, _) in ELSEWHERE.items():
        for given in ({name: neutral}, {"_config": {name: neutral}}):
            assert settings(None, given) == gspo.TrainCall()
        for given in ({name: 0.123}, {"_config": {name: 0.123}}):
            with pytest.raises(ValueError, match=rf"^{name} = 0.123: "):
                settings(None, given)


def test_what_is_taken():
    assert settings(None, {}) == gspo.TrainCall()
    assert settings(gspo.TrainCall(1e-5, "turn"), {}) == gspo.TrainCall(1e-5, "turn")
    art = SimpleNamespace(learning_rate=5e-6, kl_penalty_coef=0.0)
    assert settings(None, {"learning_rate": 1e-4, "ppo": False}) == gspo.TrainCall(1e-4)
    assert settings(art, {"learning_rate": 1e-4}).learning_rate == 1e-4


def test_what_is_refused():
    for given, why in (
        ({"_config": {"epsilon": 0.2}}, r"epsilon = 0.2: .* the run has it as algorithm\.epsilon"),
        ({"kl_penalty_coef": 0.1}, r"algorithm\.beta"),
        *(({"learning_rate": rate}, "above 0 and at most 1") for rate in (0, 2.0, float("nan"), "1e-5")),
        ({"kimi_k2_tau": 1.0}, "kimi_k2_tau = 1.0: gspo has nothing like it: leave it out"),
        ({"loss_fn": "ppo"}, r"the run has it as algorithm\.name"),
    ):
        with pytest.raises(ValueError, match=why):
            settings(None, given)
    with pytest.raises(TypeError, match="no argument 'tau': it takes learning_rate, importance_sampling_level"):
        settings(None, {"_config": {"tau": 1.0}})


def test_the_fields_that_are_named_exist():
    keys = set(all_keys())
    named = {where.partition(",")[0] for _, where in ELSEWHERE.values() if where != NOTHING}
    assert {name for name in named if name.partition(".")[0] in ("algorithm", "train")} <= keys


def test_the_adapters_of_a_model():
    def model(**internal):
        return SimpleNamespace(_internal_config=internal or None)

    assert adapters(model()) == {}
    given = model(peft_args={"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})
    assert adapters(given) == {"rank": 2, "alpha": 4, "targets": ["q_proj"]}
    for given, name in ((model(engine_args={"seed": 1}), "engine_args"), (model(peft_args={"bias": "all"}), "bias")):
        with pytest.raises(ValueError, match=rf"_internal_config: {name} = .* does not read it; leave it out"):
            adapters(given)


def test_numbers_have_arts_names():
    metrics = {"step": 3, "loss": 0.5, "kl": 0.1, "clip_ratio/low_mean": float("nan"), "note": "text"}
    assert in_arts_names(metrics) == {"gspo/step": 3.0, "loss/train": 0.5, "gspo/kl": 0.1}
