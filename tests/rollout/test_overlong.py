"""DAPO's penalty for length against its equation, and in the batches of both sources."""

import dataclasses

import torch

from gspo.config.rollout import RolloutConfig
from gspo.rollout.overlong import penalised
from gspo.types import Prompt, Rollout


def rollout(length, reward=1.0):
    begun = Rollout.begun(Prompt("p", "?", (1, 2)))
    tokens = torch.arange(length + 2)
    return dataclasses.replace(begun, tokens=tokens, sampled=tokens >= 2, reward=reward, reward_parts={"own": reward})


def test_the_reward_falls_linearly_over_the_last_tokens():
    config = RolloutConfig(max_completion_length=20, overlong_buffer=8)
    for length in range(1, 21):
        free, expected = 20 - 8, 0.0
        if length > free:
            expected = (free - length) / 8  # DAPO, equation 13
        (one,) = penalised([rollout(length, 0.5)], config)
        assert one.reward == 0.5 + expected and one.reward_parts == {"own": 0.5, "overlong": expected}
    assert penalised([rollout(20)], config)[0].reward == 0.0
    assert penalised([rollout(20, None)], config)[0].reward is None  # failed, and so left out
    assert penalised([rollout(20)], RolloutConfig(max_completion_length=20))[0].reward_parts == {"own": 1.0}
