"""A value head for PPO, on the policy's hidden states or on a copy of its trunk."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from gspo.backends.hf.model import HFModel
from gspo.objective.completions import index_select_deterministic


class Critic(nn.Module):
    """V of the state before a token: a linear head on hidden states [N, H], initialised to zero.

    trunk: "shared" reads the policy's hidden states, and its gradient flows into the policy. "copy" has its own body, which
    doubles the memory and time of a pass, and does not affect the policy.
    """

    def __init__(self, model: HFModel, trunk: str) -> None:
        super().__init__()
        self.own: HFModel | None = None
        if trunk == "copy":
            self.own = dataclasses.replace(model, model=copy.deepcopy(model.model))
            self.own.model.get_output_embeddings().requires_grad_(False)  # unused; tied embeddings are then frozen too
            self.body = self.own.body
        size = model.config.hidden_size
        self.head = nn.Linear(size, 1, device=model.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, states: Tensor, before: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Values [N] float32 of the policy's hidden states [N, H] at flat positions `before` [N] of a pass over `inputs`."""
        if self.own is not None:
            states = index_select_deterministic(self.own.hidden(**inputs).flatten(0, 1), before)
        with torch.autocast(states.device.type, enabled=False):
            return self.head(states.float())[:, 0]
