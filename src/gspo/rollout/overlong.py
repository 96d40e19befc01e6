"""The soft overlong penalty of DAPO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gspo.config.rollout import RolloutConfig
from gspo.types import Rollout


def penalised(rollouts: Sequence[Rollout], config: RolloutConfig) -> list[Rollout]:
    """The scored rollouts with the penalty for length added to their rewards, and as the part `overlong` (DAPO, arXiv
    2503.14476, equation 13, with L_max = max_completion_length and L_cache = overlong_buffer):

    R_length(y) = 0 for |y| <= L_max - L_cache, else (L_max - L_cache - |y|) / L_cache
    """
    if not config.overlong_buffer:
        return list(rollouts)
    free = config.max_completion_length - config.overlong_buffer
    changed = []
    for rollout in rollouts:
        penalty = min(0.0, (free - int(rollout.sampled.sum())) / config.overlong_buffer)
        parts = rollout.reward_parts | {"overlong": penalty}
        reward = None if rollout.reward is None else rollout.reward + penalty
        weights = (*rollout.reward_weights, 1.0)
        changed.append(dataclasses.replace(rollout, reward=reward, reward_parts=parts, reward_weights=weights))
    return changed
