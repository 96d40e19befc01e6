"""Routing Replay in the embedded sampler: records which experts the tokens of each completion chose."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from gspo.backends.hf import routing


class Trail:
    """The experts chosen by each row of a batch during decoding."""

    def __init__(self, record: routing.Record) -> None:
        self.record = record
        self.steps: list[Tensor] = []  # [rows, layers, k] each

    def begin(self, sizes: list[int], prompt_of: Tensor) -> None:
        """Call after the prefill of left-padded prompts of `sizes` tokens. prompt_of [rows]: the prompt of each row."""
        prompt_routes = self.record.take().transpose(0, 1).unflatten(0, (len(sizes), -1)).cpu()
        self.prompts = [prompt[len(prompt) - size :] for prompt, size in zip(prompt_routes, sizes)]
        self.prompt_of = prompt_of.tolist()

    def add(self, live: Tensor) -> None:
        """Call after each decoding step of the rows in `live`."""
        chosen = self.record.take().transpose(0, 1)  # [tokens, layers, k]
        step = chosen.new_full((len(self.prompt_of), *chosen.shape[1:]), -1)
        step[live] = chosen
        self.steps.append(step)

    def routes(self, row: int, count: int) -> Tensor:
        """Routes [count, layers, k] of the row's prompt and completion; -1 for its last token, which was never read."""
        prompt = self.prompts[self.prompt_of[row]]
        completion = prompt.new_full((count - len(prompt), *prompt.shape[1:]), -1)
        if self.steps:
            completion[:-1] = self._read[row, : len(completion) - 1]
        return torch.cat([prompt, completion])

    @cached_property
    def _read(self) -> Tensor:
        """Routes [rows, steps, layers, k] of the completions' tokens that were read."""
        return torch.stack(self.steps, 1).cpu()
