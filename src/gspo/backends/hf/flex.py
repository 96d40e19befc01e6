"""Attention over a forest on a GPU with FlexAttention, whose kernel skips blocks that are fully masked.

Token i attends to j if `j <= i <= last[j]`, and under a window W only from its ancestor W - 1 levels up: `start[i] <= j`.
Which blocks of the mask are empty, full or mixed follows from bounds per block, without materialising the mask.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gspo.types import Forest

BLOCK = 128  # queries and keys per block
GRAPHS = 64  # maximum compiled variants: with and without gradients, and for sizes that happen to be equal
# For short rows torch would pick a decoding kernel, and find none that fits the block size.
OPTIONS = {"FORCE_USE_FLEX_ATTENTION": True}


class Blocks:
    """A forest in host memory prepared for the GPU kernel. depth: tokens on its longest path."""

    def __init__(self, forest: Forest, device: torch.device | None = None) -> None:
        self.forest = forest if device is None else forest.to(device)
        self.depth = int(forest.position.max()) + 1
        self.windows: list[int | None] = []  # of each layer that attended, in layer order
        self.masks: dict[int | None, BlockMask] = {}

    def mask(self, window: int | None) -> BlockMask:
        """The block mask for this window, cached for all layers that use it."""
        if window not in self.masks:
            self.masks[window] = block_mask(self.forest.last, starts(self.forest.parent, window))
        return self.masks[window]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int | None, scale: float) -> Tensor:
        """Queries [1, H, T, D], keys and values [1, H', T, D] -> [1, T, H, D]."""
        grouped = query.shape[1] != key.shape[1]
        o: Tensor = kernel()(
            query, key, value, block_mask=self.mask(window), scale=scale, enable_gqa=grouped, kernel_options=OPTIONS
        )
        return o.transpose(1, 2)


@cache
def kernel() -> Any:
    """FlexAttention compiled for forests of any size. Beyond its limit of variants torch would silently fall back to the
    plain computation with all pairs in memory: `fullgraph` makes that an error.
    """
    torch._dynamo.config.recompile_limit = max(GRAPHS, torch._dynamo.config.recompile_limit)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def starts(parent: Tensor, window: int | None) -> Tensor:
    """The first token [T] that each token may attend to: its ancestor window - 1 levels up; -1: all its ancestors."""
    root = len(parent)  # a virtual token that is the parent of every root and of itself
    if window is None:
        return torch.full_like(parent, -1)
    up = torch.cat([torch.where(parent < 0, root, parent), parent.new_full((1,), root)])
    ancestor, steps_left = torch.arange(root + 1, device=parent.device), window - 1
    while steps_left:  # binary lifting
        if steps_left & 1:
            ancestor = up[ancestor]
        up, steps_left = up[up], steps_left >> 1
    return torch.where(ancestor == root, -1, ancestor)[:root]


def block_mask(last: Tensor, start: Tensor) -> BlockMask:
    """The block mask over the tokens of a forest. last [T]: as in types.Forest. start [T]: the result of `starts`."""
    size = len(last)
    first = torch.arange(0, size, BLOCK, device=last.device)  # first token of each block
    end = (first + BLOCK).clamp(max=size) - 1

    def by_block(x: Tensor, padding: int) -> Tensor:
        return F.pad(x, (0, len(first) * BLOCK - size), value=padding).view(-1, BLOCK)

    furthest, nearest = by_block(last, -1).amax(1), by_block(last, size).amin(1)
    low, high = by_block(start, size).amin(1)[:, None], by_block(start, -1).amax(1)[:, None]
    touching = (first <= end[:, None]) & (first[:, None] <= furthest) & (low <= end)  # [query blocks, key blocks]
    full = touching & (end <= first[:, None]) & (end[:, None] <= nearest) & (high <= first)

    def may_look(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (start[i] <= j) & (j <= i) & (i <= last[j])

    mixed, whole = _listed(touching & ~full), _listed(full)
    return BlockMask.from_kv_blocks(*mixed, *whole, BLOCK_SIZE=BLOCK, mask_mod=may_look, seq_lengths=(size, size))


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Per query block: the number of its key blocks [1, 1, blocks], and all key blocks, its own first. Both int32."""
    count = blocks.sum(1, dtype=torch.int32)
    order = blocks.int().argsort(dim=1, descending=True, stable=True).to(torch.int32)
    return count[None, None], order[None, None].contiguous()
