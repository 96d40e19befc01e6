"""Converts the expert choices of vLLM's routers to the trainer's routes."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.routers import routers

FLAG = "enable_return_routed_experts"  # the engine argument that enables them


@dataclass(frozen=True)
class Routers:
    """The routers of a model: the decoder layers with one, in order; experts per token; number of experts in a layer."""

    layers: tuple[int, ...]
    k: int
    experts: int

    @staticmethod
    def of(policy: HFPolicy) -> Routers | None:
        """The routers of a policy's model; None for a dense one."""
        if policy.choices is None:
            return None
        model = policy.model.model
        named = {id(module): name for name, module in model.named_modules()}
        numbers = [[int(part) for part in named[id(router)].split(".") if part.isdigit()] for router in routers(model)]
        return Routers(tuple(number for number, *_ in numbers), *policy.choices)  # the first is that of the decoder layer

    def read(self, answer: str, tokens: int) -> Tensor:
        """Routes [tokens, layers, k] from a .npy file in base64 of an array [tokens, all layers, k]. Raises ValueError."""
        try:
            array = np.lib.format.read_array(io.BytesIO(base64.b64decode(answer)), allow_pickle=False)
        except Exception as error:  # numpy raises many kinds, even for a shape too large for memory
            raise ValueError(f"experts that cannot be read ({type(error).__name__}: {error})") from None
        if array.ndim != 3 or array.shape[::2] != (tokens, self.k) or array.shape[1] <= max(self.layers):
            raise ValueError(f"experts of shape {list(array.shape)} for {tokens} tokens, {self.layers} layers, k = {self.k}")
        routes = array[:, list(self.layers)]
        if routes.size and not 0 <= int(routes.min()) <= int(routes.max()) < self.experts:
            raise ValueError(f"experts outside of 0 to {self.experts - 1}")
        return torch.from_numpy(routes.astype(np.int16))

    def unknown(self, tokens: int) -> Tensor:
        """Placeholder routes (-1) of tokens whose experts are not known."""
        return torch.full((tokens, len(self.layers), self.k), -1, dtype=torch.int16)
