"""What the host has to know of tensors on a GPU. It waits for each answer until all that was asked of the GPU is done, so it
asks seldom: docs/performance.md says how often an update does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same in the host's memory, by one copy. Those that are there already stay as they are."""
    if all(x.device.type == "cpu" for x in tensors):
        return list(tensors)
    # Wide numbers first: each then begins at a multiple of its own size.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    parts = torch.cat([tensors[i].contiguous().flatten().view(torch.uint8) for i in order]).cpu()
    found: dict[int, Tensor] = {}
    for i, part in zip(order, parts.split([tensors[i].numel() * tensors[i].element_size() for i in order])):
        found[i] = part.view(tensors[i].dtype).view(tensors[i].shape).clone()  # else one would keep all others
    return [found[i] for i in range(len(tensors))]


def nonzero(x: Any) -> Tensor:
    """The places [K] where x [N] is not 0, ascending. They are noted with x: who asks again does not wait again."""
    version, places = getattr(x, "nonzero_places", (-1, x))
    if version != x._version:
        places = x.nonzero()[:, 0]
        x.nonzero_places = x._version, places
    return places
