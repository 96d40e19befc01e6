"""Rewards of groups -> advantages."""

from __future__ import annotations

import torch
from torch import Tensor


def group_advantages(rewards: Tensor, group: Tensor, scale: str = "group") -> Tensor:
    """A_i = (r_i - mean(r)) / std(r), mean and std over the replies of one group (GSPO, Eq. 6).

    rewards [S] float, group [S] int64: the group each reply belongs to -> [S] float64. std is the sample standard
    deviation. scale: "group"; "batch" divides by the standard deviation of all S rewards; "none" divides by nothing
    (Dr.GRPO). A group whose rewards are all equal (up to the rounding of a weighted sum) gives zeros exactly. Raises
    ValueError for a reward that is not finite, and for a group of one, which has no baseline.
    """
    r = rewards.double()
    if not torch.isfinite(r).all():
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    if scale not in ("group", "batch", "none"):
        raise ValueError(f"scale = {scale!r}: allowed are group, batch, none")
    _, index, count = torch.unique(group, return_inverse=True, return_counts=True)
    if len(r) and count.min() < 2:
        raise ValueError("a group of one reply has no baseline: every group needs at least 2 rewards")
    zeros = r.new_zeros(len(count))
    centred = r - (zeros.index_add(0, index, r) / count)[index]
    low = zeros.scatter_reduce(0, index, r, "amin", include_self=False)
    high = zeros.scatter_reduce(0, index, r, "amax", include_self=False)
    flat = high - low <= 1e-12 + 1e-9 * torch.maximum(high.abs(), low.abs())
    centred = torch.where(flat[index], 0.0, centred)  # divided by its own size, a rounding would be a full advantage
    if scale == "none":
        return centred
    if scale == "batch":
        spread = r.std() if len(r) > 1 else r.new_zeros(())
    else:
        spread = (zeros.index_add(0, index, centred**2) / (count - 1)).sqrt()[index]
    return torch.where(centred == 0, 0.0, centred / spread)
