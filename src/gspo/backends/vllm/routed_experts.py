"""Converts the expert choices of vLLM's routers to the trainer's routes."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.routers import routers

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
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
        model = policy.model
        found = routers(model.model)
        if policy.choices is None:
            return None
        named = {id(module): name for name, module in model.model.named_modules()}
        layers = []
        for router in found:
            match = LAYER.search(named[id(router)])
            if match is None:
                raise ValueError(
                    f"{type(model.model).__name__}: {named[id(router)]!r} names no decoder layer, so vLLM's routes cannot "
                    f"be told apart: set sampler.engine_args = {{{FLAG} = false}}"
                )
            layers.append(int(match[1]))
        return Routers(tuple(layers), *policy.choices)

    def read(self, answer: Any, tokens: int) -> Tensor:
        """Decodes routes [tokens, layers, k] from an engine's answer: an array [tokens, all layers, k], or its .npy file in
        base64.

        Raises ValueError if it is neither.
        """
        try:
            sent = None if isinstance(answer, np.ndarray) else io.BytesIO(base64.b64decode(answer))
            array = answer if sent is None else np.lib.format.read_array(sent, allow_pickle=False)
        except Exception as error:  # numpy raises many kinds, even for a shape too large for memory
            raise ValueError(f"experts that cannot be read ({type(error).__name__}: {error})") from None
        if array.ndim != 3 or array.shape[::2] != (tokens, self.k) or array.shape[1] <= max(self.layers):
            raise ValueError(f"experts of shape {list(array.shape)} for {tokens} tokens, {self.layers} layers, k = {self.k}")
        routes = array[:, list(self.layers)]
        if routes.dtype.kind not in "iu":
            raise ValueError(f"experts of type {routes.dtype}, which are no whole numbers")
        if routes.size and not 0 <= int(routes.min()) <= int(routes.max()) < self.experts:
            raise ValueError(f"experts outside of 0 to {self.experts - 1}")
        return torch.from_numpy(routes.astype(np.int16))

    def unknown(self, tokens: int) -> Tensor:
        """Placeholder routes (-1) of tokens whose experts are not known."""
        return torch.full((tokens, len(self.layers), self.k), -1, dtype=torch.int16)
