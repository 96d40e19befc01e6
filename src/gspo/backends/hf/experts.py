"""The experts of a mixture: transformers' grouped matrix products with less overhead, on a CPU and under autocast.

The products are the same (`grouped_mm`), so the results are too. Tokens are scattered to their experts and gathered back
with operations that are fast on a CPU, above all in the backward pass. Autocast does not cover grouped products, so the
weights are cast here, as autocast does for linear layers. Adapters on the stacks are multiplied with the tokens, as in
linear layers.
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

from gspo.backends.hf.quantized_weights import Packed
from gspo.objective.completions import index_select_deterministic

NAME = "gspo"  # in transformers' table of expert kernels
# Cache of cast weights while sampling: id -> weight, version that was cast, cast copy. Otherwise None.
_casts: ContextVar[dict[int, tuple[Tensor, int, Tensor]] | None] = ContextVar("casts", default=None)
ALIGNED = 8  # elements: grouped products need rows aligned to 16 bytes


class Adapter(NamedTuple):
    """A LoRA update scale B A of a stack W [E, out, in], with down = A [E, r, in] and up = B [E, out, r]."""

    down: Tensor
    up: Tensor
    scale: float


# Of the experts that run at the moment.
_adapters: ContextVar[Mapping[str, Adapter] | None] = ContextVar("adapters", default=None)


def suits(device: torch.device, autocast: bool) -> bool:
    """Whether this kernel suits the device and the torch version: up to 2.10, CPU products required aligned weights."""
    return TorchVersion(torch.__version__) >= "2.11" if device.type == "cpu" else autocast and hasattr(F, "grouped_mm")


@contextmanager
def while_sampling() -> Iterator[None]:
    """Context for a sampling loop. Each weight is cast once and the copy is cached until the end, as autocast does for
    linear layers.
    """
    outer = _casts.get()
    token = _casts.set({} if outer is None else outer)
    try:
        yield
    finally:
        _casts.reset(token)


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Experts function for transformers: hidden_states [T, H], top_k_index and top_k_weights [T, k] -> [T, H]."""
    if not _plain(self):
        return grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    count, k = top_k_index.shape
    expert, order = torch.sort(top_k_index.reshape(-1))  # [T * k]
    ends = torch.searchsorted(expert, torch.arange(self.num_experts, device=expert.device), right=True, out_int32=True)
    token = order // k
    x = self._apply_gate(_product(self, "gate_up_proj", index_select_deterministic(hidden_states, token), ends))
    x = _product(self, "down_proj", x, ends)
    x = torch.empty_like(x).index_copy_(0, order, x)  # back to token order
    return (x.view(count, k, -1) * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


def _product(experts: Any, name: str, x: Tensor, ends: Tensor) -> Tensor:
    """x W^T, each row of x [T, in] with its expert's part of W [E, out, in], plus the adapter of that name."""
    stack = getattr(experts, name)
    if isinstance(stack, Packed):
        out = stack.product(x, ends)
    else:
        weight = _cast(stack)
        x = x.to(weight.dtype)
        out = F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    if (adapter := (_adapters.get() or {}).get(name)) is None:
        return out
    fill = -adapter.up.shape[2] % ALIGNED  # zero padding of the LoRA rank
    # In the type of `out`: GPUs have a grouped kernel for bfloat16 alone. How much it saves was not measured on one.
    down, up = (w.to(out.dtype) for w in (F.pad(adapter.down, (0, 0, 0, fill)), F.pad(adapter.up, (0, fill)).contiguous()))
    low = F.grouped_mm(x.to(out.dtype), down.transpose(1, 2), offs=ends)
    return out + F.grouped_mm(low, up.transpose(1, 2), offs=ends) * adapter.scale


@contextmanager
def beside(name: str, adapter: Adapter) -> Iterator[None]:
    """Context for one pass through experts that support it (`takes_adapters`): sets the adapter of the named weight."""
    token = _adapters.set({**(_adapters.get() or {}), name: adapter})
    try:
        yield
    finally:
        _adapters.reset(token)


def takes_adapters(experts: nn.Module) -> bool:
    """Whether these experts take adapters from `beside`. Otherwise W + scale B A is materialised in each pass."""
    ours = getattr(getattr(experts, "config", None), "_experts_implementation", None) == NAME
    return ours and hasattr(experts, "has_gate") and _plain(experts)


def _cast(weight: Tensor) -> Tensor:
    """The weight as autocast would use it in a product: cast if autocast is on and the weight is float32."""
    device = weight.device.type
    if weight.dtype != torch.float32 or not torch.is_autocast_enabled(device):
        return weight
    dtype, cache = torch.get_autocast_dtype(device), _casts.get()
    lasts = isinstance(weight, nn.Parameter) and not weight.is_inference()  # other tensors may be new in each pass
    if cache is None or torch.is_grad_enabled() or not lasts:
        return weight.to(dtype)
    _, version, copy = cache.get(id(weight), (weight, -1, weight))
    if version != weight._version:
        copy = weight.to(dtype)
        cache[id(weight)] = weight, weight._version, copy
    return copy


def _plain(experts: Any) -> bool:
    """Whether these experts are two products with a gate in between, without expert parallelism."""
    more = ("has_bias", "is_transposed", "has_post_expert_norm", "_is_expert_parallel")
    return experts.has_gate and not any(getattr(experts, name, False) for name in more)


ExpertsInterface.register(NAME, experts_forward)
