"""Transfers from GPU to host. Each one blocks until the GPU has finished all queued work, so there are few:
docs/performance.md says how many an update makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors in host memory, transferred in one copy. Tensors that are all on the CPU are returned unchanged."""
    if all(x.device.type == "cpu" for x in tensors):
        return list(tensors)
    # Wide dtypes first, so that each tensor is aligned to its element size.
    order = sorted(range(len(tensors)), key=lambda i: -tensors[i].element_size())
    parts = torch.cat([tensors[i].contiguous().flatten().view(torch.uint8) for i in order]).cpu()
    found = list(tensors)
    for i, part in zip(order, parts.split([tensors[i].numel() * tensors[i].element_size() for i in order])):
        found[i] = part.view(tensors[i].dtype).view(tensors[i].shape).clone()  # a view would keep the whole buffer alive
    return found


def nonzero(x: Any) -> Tensor:
    """Ascending indices [K] where x [N] is not 0. Cached on x, so that a second call does not wait for the GPU again."""
    version, places = getattr(x, "nonzero_places", (-1, x))
    if version != x._version:
        places = x.nonzero()[:, 0]
        x.nonzero_places = x._version, places
    return places
