"""The ragged view: N sampled tokens of S whole completions, flat. No padding, no mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    """Which of S completions each of N tokens belongs to.

    completion [N] int64: the token's completion, ascending. length [S]: |y_i|, the number of sampled tokens of each
    completion. turn [N] int64: the turn of its completion that the token belongs to, those of a turn together; None: each
    completion is one turn. turn_length [turns]: tokens of each turn, where they are known: to count them waits for a GPU.
    """

    completion: Tensor
    length: Tensor
    turn: Tensor | None = None
    turn_length: Tensor | None = None

    @staticmethod
    def of(lengths: Tensor, turn: Tensor | None = None) -> Completions:
        """The view of completions with `lengths` [S] tokens, laid out one after the other."""
        completion = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
        return Completions(completion, lengths, turn)

    def turns(self) -> Completions:
        """The view in which each turn of each completion is a completion of its own."""
        if self.turn is None:
            return self
        new = (self.completion.diff() != 0) | (self.turn.diff() != 0)
        number = torch.cat([new.new_zeros(min(1, len(self.turn))), new]).long().cumsum(0)
        return Completions(number, torch.bincount(number) if self.turn_length is None else self.turn_length)

    def sum(self, x: Tensor) -> Tensor:
        """Sum over each completion's tokens: [N] -> [S]."""
        return x.new_zeros(len(self.length)).index_add(0, self.completion, x)

    def mean(self, x: Tensor) -> Tensor:
        """Mean over each completion's tokens: [N] -> [S]."""
        return self.sum(x) / self.length

    def spread(self, x: Tensor) -> Tensor:
        """Each completion's value at each of its tokens: [S] -> [N]; what is [N] already stays as it is."""
        return (
            x
            if x.shape == self.completion.shape and x.shape != self.length.shape
            else index_select_deterministic(x, self.completion)
        )


def index_select_deterministic(x: Tensor, index: Tensor) -> Tensor:
    """x[index]: [T, ...] -> [N, ...]. Its gradient is added up in one order, whatever else runs on the machine.

    On a CPU, threads add up that of x[index] as they come; on a GPU, that of index_select.
    """
    return x.index_select(0, index) if x.device.type == "cpu" else x[index]
