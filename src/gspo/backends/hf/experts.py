"""The experts of a mixture: transformers' grouped products with less around them on a CPU, and under autocast anywhere.

The products are the same (`grouped_mm`), so the results are too. Tokens go to their experts and back by operations that
are fast on a CPU, above all backward. Autocast does not know these products: their weights are rounded here, as it rounds
those of linear layers. Adapters on the stacks are multiplied with the tokens, as those of linear layers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.torch_version import TorchVersion
from transformers.integrations.moe import ExpertsInterface, grouped_mm_experts_forward

from gspo.backends.hf import fused
from gspo.backends.hf.quantized_weights import Packed
from gspo.objective.completions import index_select_deterministic

NAME = "gspo"  # in transformers' table of expert kernels
# While sampling: weights by their id, the versions that were copied, and the copies. Else None.
_kept: ContextVar[dict[int, tuple[Tensor, int, Tensor]] | None] = ContextVar("kept", default=None)
ALIGNED = 8  # numbers: grouped products want rows that begin at a multiple of 16 bytes


class Adapter(NamedTuple):
    """What is added to a stack W [E, out, in]: scale B A, with down = A [E, r, in] and up = B [E, out, r]."""

    down: Tensor
    up: Tensor
    scale: float


_adapters: ContextVar[Mapping[str, Adapter] | None] = ContextVar("adapters", default=None)  # of the experts of now


def suits(device: torch.device, autocast: bool) -> bool:
    """Whether this kernel is for such a device, and torch new enough: to 2.10 products wanted aligned weights on a CPU."""
    return TorchVersion(torch.__version__) >= "2.11" if device.type == "cpu" else autocast and hasattr(F, "grouped_mm")


@contextmanager
def while_sampling() -> Iterator[None]:
    """For the many passes that sample. Each weight is rounded once, as autocast does with those of linear layers, and all
    copies are kept to the end; kernels compute a layer's experts at once.
    """
    if _kept.get() is not None:
        yield
        return
    token = _kept.set({})
    try:
        yield
    finally:
        _kept.reset(token)


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """hidden_states [T, H], top_k_index and top_k_weights [T, k] -> [T, H], as an experts function of transformers."""
    if not _plain(self):
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    if fused.placed(self) and fused.suits(hidden_states, top_k_weights) and _wide(self):
        return _by_kernels(self, hidden_states, top_k_index, top_k_weights)
    count, k = top_k_index.shape
    expert, order = torch.sort(top_k_index.reshape(-1))  # [T * k]
    ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=expert.device), right=True, out_int32=True)
    token = order // k
    x = self._apply_gate(_product(self, "gate_up_proj", index_select_deterministic(hidden_states, token), ends))
    x = _product(self, "down_proj", x, ends)
    x = torch.empty_like(x).index_copy_(0, order, x)  # back in the order of the tokens
    return (x.view(count, k, -1) * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


def _by_kernels(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The same by compiled kernels: while sampling all at once, else all but the products. Passes that read likelihoods take
    the products of updates: at other shapes the same product rounds otherwise.
    """
    stacks = self.gate_up_proj, self.down_proj
    whole = all(fused.suits(stack) for stack in stacks) and not _adapters.get()
    if whole and _kept.get() is not None and not torch.is_grad_enabled() and fused.multiplies():
        return fused.experts(hidden_states, top_k_index, top_k_weights, *stacks)
    choices = fused.sort_choices(top_k_index, self.num_experts)
    x = fused.swiglu_halves(_product(self, "gate_up_proj", fused.sent(hidden_states, choices), choices.ends))
    return fused.combine(_product(self, "down_proj", x, choices.ends), top_k_weights, choices)


def _product(experts: Any, name: str, x: Tensor, ends: Tensor) -> Tensor:
    """x W, each row of x [T, in] with its expert's of W [E, out, in], and what an adapter of that name adds."""
    stack = getattr(experts, name)
    if isinstance(stack, Packed):
        out = stack.product(x, ends)
    else:
        weight = _rounded(stack)
        x = x.to(weight.dtype)
        out = F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    if (adapter := (_adapters.get() or {}).get(name)) is None:
        return out
    fill = -adapter.up.shape[2] % ALIGNED  # of the rank, with zeros
    down, up = _rounded(F.pad(adapter.down, (0, 0, 0, fill))), _rounded(F.pad(adapter.up, (0, fill)).contiguous())
    low = F.grouped_mm(x.to(down.dtype), down.transpose(1, 2), offs=ends)
    return out + (F.grouped_mm(low, up.transpose(1, 2), offs=ends) * adapter.scale).to(out.dtype)


@contextmanager
def beside(name: str, adapter: Adapter) -> Iterator[None]:
    """For one pass through experts that `takes_adapters`: the adapter of their weight of that name."""
    token = _adapters.set({**(_adapters.get() or {}), name: adapter})
    try:
        yield
    finally:
        _adapters.reset(token)


def takes_adapters(experts: nn.Module) -> bool:
    """Whether these experts take adapters as `beside` gives them. Else W + scale B A is made for each pass."""
    ours = getattr(getattr(experts, "config", None), "_experts_implementation", None) == NAME
    return ours and hasattr(experts, "has_gate") and _plain(experts)


def _rounded(weight: Tensor) -> Tensor:
    """The weight as autocast has it in products: rounded where it is on and the weight is float32."""
    device = weight.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return weight
    dtype, kept = torch.get_autocast_dtype(device), _kept.get()
    lasts = isinstance(weight, nn.Parameter) and not weight.is_inference()  # others may be made anew for each pass
    if kept is None or torch.is_grad_enabled() or not lasts:
        return weight.to(dtype)
    _, version, copy = kept.get(id(weight), (weight, -1, weight))
    if version != weight._version:
        copy = weight.to(dtype)
        kept[id(weight)] = weight, weight._version, copy
    return copy


def _wide(experts: Any) -> bool:
    """Whether the products come out in float32."""
    return all(stack.dtype == torch.float32 for stack in (experts.gate_up_proj, experts.down_proj))


def _plain(experts: Any) -> bool:
    """Whether these experts are two products with a gate between them, all on this machine."""
    more = ("has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel")
    return experts.has_gate and not any(getattr(experts, name, False) for name in more)


ExpertsInterface.register(NAME, experts_forward)
