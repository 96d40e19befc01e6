"""Bounds on the value of a reward."""

from __future__ import annotations

import math

LARGEST = 1e9
"""Maximum magnitude of a reward: advantages and squared gradients must stay well within float32."""
NO_OPINION = "no reward function scored it"
"""Error of a completion for which every reward function returned None."""


def invalid(reward: float) -> str:
    """Why a number cannot be a reward, or an empty string if it can."""
    if not math.isfinite(reward):
        return f"{reward}, which is not a finite number"
    if abs(reward) > LARGEST:
        return f"{reward:g}, which is beyond {LARGEST:g}: scale the reward down"
    return ""
