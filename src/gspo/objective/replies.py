"""The ragged view: N sampled tokens of S whole replies, flat. No padding, no mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Replies:
    """Which of S replies each of N tokens belongs to.

    reply [N] int64: the token's reply, ascending. length [S]: |y_i|, the number of sampled tokens of each reply. turn [N]
    int64: the turn of its reply that the token belongs to, those of a turn together; None: each reply is one turn.
    """

    reply: Tensor
    length: Tensor
    turn: Tensor | None = None

    @staticmethod
    def of(lengths: Tensor, turn: Tensor | None = None) -> Replies:
        """The view of replies with `lengths` [S] tokens, laid out one after the other."""
        reply = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        return Replies(reply, lengths, turn)

    def turns(self) -> Replies:
        """The view in which each turn of each reply is a reply of its own."""
        if self.turn is None:
            return self
        new = (self.reply.diff() != 0) | (self.turn.diff() != 0)
        number = torch.cat([new.new_zeros(min(1, len(self.turn))), new]).long().cumsum(0)
        return Replies(number, torch.bincount(number))

    def sum(self, x: Tensor) -> Tensor:
        """Sum over each reply's tokens: [N] -> [S]."""
        return x.new_zeros(len(self.length)).index_add(0, self.reply, x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each reply's tokens: [N] -> [S]."""
        return self.sum(x) / self.length

    def spread(self, x: Tensor) -> Tensor:
        """Each reply's value at each of its tokens: [S] -> [N]; what is [N] already stays as it is."""
        return x if x.shape == self.reply.shape and x.shape != self.length.shape else x[self.reply]
