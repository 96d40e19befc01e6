import pytest

from gspo.config import AlgorithmConfig
from gspo.objective.algorithms import ALGORITHMS, resolve


def test_the_preset_is_the_papers():
    row, config, warnings = resolve(AlgorithmConfig())
    assert (row.level, row.counts, warnings) == ("sequence", "replies", [])
    assert (config.name, config.epsilon, config.epsilon_high, config.mini_batches) == ("gspo", 3e-4, 4e-4, 4)
    assert (config.scale_rewards, config.beta, config.epochs) == ("group", 0.0, 1)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_resolves_to_its_own_defaults(name):
    row, config, _ = resolve(AlgorithmConfig(name=name))
    assert (config.epsilon, config.epsilon_high) == (row.epsilon, row.epsilon_high)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "gsop"}, "did you mean gspo"),
        ({"epsilon": 0.1}, "set algorithm.epsilon_high too"),
        ({"epsilon_high": 0.1}, "set algorithm.epsilon too"),
        ({"name": "dr_grpo", "scale_rewards": "group"}, "no longer dr_grpo"),
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
    ],
)
def test_odd_values_are_warned_of(settings, message):
    _, _, warnings = resolve(AlgorithmConfig(**settings))
    assert any(message in warning for warning in warnings)
