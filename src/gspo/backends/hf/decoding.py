"""Attention layers that decode a token by one kernel, where that gives the numbers of their own forward pass.

Between a layer's projections and its output's there are a dozen small operations a token. They are one here: for layers that
normalise heads, turn queries and keys and look at a shared cache, which is found by trying a small copy of each.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gspo.backends.hf import fused
from gspo.backends.hf.kv_cache import SharedCache, SharedLayer, shared_attention

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
NORMS = ("q_norm", "k_norm")
ARGUMENTS = {
    "self", "hidden_states", "position_embeddings", "attention_mask", "past_key_values", "cache_position", "position_ids",
    "use_cache", "output_attentions", "kwargs",
}  # fmt: skip  # others may mean that a layer does more
WIDTH = 8  # of the hidden states that a copy reads
TRIED = 3  # tokens of the prompts, and of the completions, that a copy reads
CLOSE = 1e-5  # largest difference that rounding explains, as a share of the largest number


def place(model: nn.Module) -> int:
    """Lets attention layers of this model decode by the kernel, in place, where its other kernels are. Returns how many."""
    found = [module for module in model.modules() if _looks_known(module) and _gives_the_same(module)]
    for module in found:
        module.forward = MethodType(_forward, module)
    return len(found)


def _forward(self: Any, *given: Any, **named: Any) -> Any:
    cache = named.get("past_key_values")
    if isinstance(cache, SharedCache) and cache.kernels and not given and not torch.is_grad_enabled():
        layer = cache.layers[self.layer_idx]
        out = _step(self, layer, named["hidden_states"], *named["position_embeddings"])
        if out is not None:
            return out, None
    return type(self).forward(self, *given, **named)


def _step(module: Any, layer: SharedLayer, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """Attention of one new token a row: hidden [B, 1, H], cos and sin [1 or B, 1, D] -> [B, 1, H]. None where the kernel
    does not know such tensors, or the cache has no token of the completions yet.
    """
    if not layer.length or hidden.shape[1] != 1:
        return None
    q, k, v = module.q_proj(hidden), module.k_proj(hidden), module.v_proj(hidden)
    rows, n, places, norms = len(hidden), layer.keys.shape[3], layer.places, _norms(module)
    known = q, k, v, cos, sin, layer.prompt_keys, layer.prompt_values, layer.keys, layer.values, *(norms or ())[:2]
    if not fused.suits(*known) or not cos.shape == sin.shape == (len(cos), 1, n) or len(cos) not in (1, rows):
        return None
    at = layer.longer(1)
    q, k, v = (x.contiguous().view(rows, -1, n) for x in (q, k, v))
    prompts = layer.prompt_keys, layer.prompt_values, places.prompt_of, places.bias
    angles = cos.contiguous()[:, 0], sin.contiguous()[:, 0]
    out = fused.attend_step(q, k, v, norms, angles, prompts, (layer.keys, layer.values, at), module.scaling)
    attended: Tensor = module.o_proj(out.view(rows, 1, -1))
    return attended


def _norms(module: Any) -> tuple[Tensor, Tensor, float, float] | None:
    """The weights of its norms of queries and of keys, their eps and offset; None where it has none."""
    if "q_norm" not in module._modules:
        return None
    of_q, of_k = fused.norm_of(module.q_norm), fused.norm_of(module.k_norm)
    assert of_q is not None and of_k is not None
    return of_q[0], of_k[0], *of_q[1:]


def _looks_known(module: Any) -> bool:
    """Whether a module is an attention layer of the parts that are known here, with the kernels' norms and embeddings."""
    parts, needed = module._modules, (("head_dim", int), ("scaling", float), ("layer_idx", int))
    if not {*PROJECTIONS} <= {*parts} <= {*PROJECTIONS, *NORMS} or module._parameters or "forward" in vars(module):
        return False
    norms = [fused.norm_of(parts[name]) for name in NORMS if name in parts]
    if len(norms) == 1 or None in norms or len({norm[1:] for norm in norms if norm}) > 1:
        return False
    if not all(isinstance(getattr(module, name, None), kind) for name, kind in needed) or not fused.turns_by_kernel(module):
        return False
    return {*inspect.signature(type(module).forward).parameters} <= ARGUMENTS


@torch.no_grad()
def _gives_the_same(module: Any) -> bool:
    """Whether a copy of it, with projections and norms of random numbers, decodes as by its own forward pass."""
    try:
        small = _small(module)
        own, ours = (_decoded(small, forward) for forward in (type(small).forward, _forward))
        return bool((own - ours).abs().max() <= CLOSE * own.abs().max())
    except Exception:  # a model's own code may fail in any way on what it does not know
        return False


def _small(module: Any) -> Any:
    """A copy of this attention layer that reads hidden states of `WIDTH` numbers."""
    draw, n, config = torch.Generator().manual_seed(0), module.head_dim, module.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    sizes = {name: (WIDTH, count * n) for name, count in zip(PROJECTIONS, (heads, groups, groups))}
    layers: dict[str, Any] = {}
    for name, (wide, out) in (sizes | {"o_proj": (heads * n, WIDTH)}).items():
        layers[name] = skip_init(nn.Linear, wide, out, bias=False)  # which would draw
        layers[name].weight.copy_(torch.randn(out, wide, generator=draw))
    for name in set(NORMS) & {*module._modules}:
        norm = module._modules[name]
        layers[name] = fused.copy_of(norm, parameters={"weight": nn.Parameter(torch.randn(n, generator=draw))})
        layers[name].forward = MethodType(norm.forward.__func__, layers[name])
    small = fused.copy_of(module, modules=layers)
    small.layer_idx = 0
    return small.eval()


def _decoded(small: Any, forward: Any) -> Tensor:
    """What it makes of some tokens of three completions to two prompts, [3, TRIED, WIDTH]."""
    draw, cache, rows = torch.Generator().manual_seed(1), SharedCache(1, TRIED, kernels=True), torch.tensor([0, 1, 1])
    hidden = torch.randn(3, 2 * TRIED, WIDTH, generator=draw)
    angles = 6 * torch.rand(1, 2 * TRIED, small.head_dim, generator=draw)

    def read(forward: Any, some: Tensor, places: slice) -> Tensor:
        cos_sin = angles[:, places].cos(), angles[:, places].sin()
        out = forward(small, hidden_states=some, position_embeddings=cos_sin, attention_mask=None, past_key_values=cache)
        first: Tensor = out[0]
        return first

    with shared_attention(small.config):
        read(type(small).forward, hidden[:2, :TRIED], slice(TRIED))
        cache.fan_out(rows, None)
        places = range(TRIED, 2 * TRIED)
        return torch.cat([read(forward, hidden[:, at : at + 1], slice(at, at + 1)) for at in places], 1)
