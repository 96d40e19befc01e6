"""The ragged view: N sampled tokens of S whole replies, flat. No padding, no mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Replies:
    """Which of S replies each of N tokens belongs to.

    reply [N] int64: the token's reply, ascending. length [S]: |y_i|, the number of sampled tokens of each reply.
    """

    reply: Tensor
    length: Tensor

    @staticmethod
    def of(lengths: Tensor) -> Replies:
        """The view of replies with `lengths` [S] tokens, laid out one after the other."""
        return Replies(torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths), lengths)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over each reply's tokens: [N] -> [S]."""
        return x.new_zeros(len(self.length)).index_add(0, self.reply, x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each reply's tokens: [N] -> [S]."""
        return self.sum(x) / self.length

    def spread(self, x: Tensor) -> Tensor:
        """Each reply's value at each of its tokens: [S] -> [N]; what is [N] already stays as it is."""
        return x if x.shape == self.reply.shape and x.shape != self.length.shape else x[self.reply]
