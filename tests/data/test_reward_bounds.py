import math

import pytest

from gspo.data.reward_bounds import LARGEST, unfit


@pytest.mark.parametrize("reward", [0.0, -1.5, 1e-320, LARGEST, -LARGEST])
def test_a_reward(reward):
    assert unfit(reward) == ""


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_no_finite_number(reward):
    assert unfit(reward) == f"{reward}, which is not a finite number"


@pytest.mark.parametrize("reward", [1.1e9, -1e200, 1.7e308])
def test_a_number_that_advantages_cannot_bear(reward):
    assert "beyond 1e+09: scale the reward down" in unfit(reward)
