"""The ragged view: N sampled tokens of S whole completions, flattened. No padding, no mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Completions:
    """Maps each of N tokens to one of S completions.

    Attributes:
        completion: Completion index of each token [N], int64, ascending.
        length: |y_i|, the number of sampled tokens of each completion [S].
        turn: Turn of each token within its completion [N], int64, tokens of a turn contiguous; None: each completion is one
            turn.
        turn_length: Tokens of each turn [turns], if known: counting them would synchronise with the GPU.
    """

    completion: Tensor
    length: Tensor
    turn: Tensor | None = None
    turn_length: Tensor | None = None

    @staticmethod
    def of(lengths: Tensor, turn: Tensor | None = None) -> Completions:
        """The view of completions with `lengths` [S] tokens, concatenated."""
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
        """Broadcasts each completion's value to its tokens: [S] -> [N]; an input that is already [N] is returned as is."""
        by_token = x.shape == self.completion.shape and x.shape != self.length.shape
        return x if by_token else index_select_deterministic(x, self.completion)


def index_select_deterministic(x: Tensor, index: Tensor) -> Tensor:
    """x[index]: [T, ...] -> [N, ...], with a gradient that is accumulated in a fixed order, whatever the machine's load.

    On a CPU, threads accumulate the gradient of x[index] in arrival order; on a GPU, that of index_select.
    """
    return x.index_select(0, index) if x.device.type == "cpu" else x[index]
