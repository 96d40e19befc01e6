"""What a number must be to serve as a reward."""

from __future__ import annotations

import math

LARGEST = 1e9
"""Largest size of a reward: advantages and the squares of gradients must stay well inside float32."""
NO_OPINION = "no reward function had an opinion"
"""The error of a completion to which every reward function returned None."""


def unfit(reward: float) -> str:
    """Why a number cannot be a reward, or an empty string."""
    if not math.isfinite(reward):
        return f"{reward}, which is not a finite number"
    if abs(reward) > LARGEST:
        return f"{reward:g}, which is beyond {LARGEST:g}: scale the reward down"
    return ""
