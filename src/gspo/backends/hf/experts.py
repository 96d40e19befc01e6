"""The experts of a mixture on a CPU: transformers' grouped products with less around them.

The products are the same (`grouped_mm`), so the results are too. Tokens go to their experts and back by operations that
are fast on a CPU, above all backward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.torch_version import TorchVersion
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

NAME = "gspo_cpu"  # in transformers' table of expert kernels


def runs_on(device: torch.device) -> bool:
    """Whether this kernel is for such a device, and torch new enough: to 2.10 products wanted aligned weights."""
    return device.type == "cpu" and TorchVersion(torch.__version__) >= "2.11"


def cpu_experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [T, H], top_k_index and top_k_weights [T, k] -> [T, H], as an experts function of transformers."""
    if not _plain(self):
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    count, k = top_k_index.shape
    expert, order = torch.sort(top_k_index.reshape(-1))  # [T * k]
    ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=expert.device), right=True, out_int32=True)
    x = hidden_states.index_select(0, order // k).to(self.gate_up_proj.dtype)
    x = self._apply_gate(F.grouped_mm(x, self.gate_up_proj.transpose(1, 2), offs=ends))
    x = F.grouped_mm(x, self.down_proj.transpose(1, 2), offs=ends)
    x = torch.empty_like(x).index_copy_(0, order, x)  # back in the order of the tokens
    return (x.view(count, k, -1) * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


def _plain(experts: Any) -> bool:
    """Whether these experts are two products with a gate between them, all on this machine."""
    more = ("has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel")
    return experts.has_gate and not any(getattr(experts, name, False) for name in more)


ExpertsInterface.register(NAME, cpu_experts_forward)
