import math

from gspo.data.reward_bounds import LARGEST, invalid


def test_what_can_be_a_reward():
    for rewards, why in (
        ((0.0, -1.5, 1e-320, LARGEST, -LARGEST), ""),
        ((math.nan, math.inf, -math.inf), ", which is not a finite number"),
        ((1.1e9, -1e200, 1.7e308), ", which is beyond 1e+09: scale the reward down"),
    ):
        for reward in rewards:
            assert invalid(reward) == (f"{reward:g}{why}" if why else "")
