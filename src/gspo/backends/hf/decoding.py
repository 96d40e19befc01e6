"""Decodes a token in an attention layer with one fused kernel, if that reproduces the layer's own forward pass.

Between the input and output projections of a layer there are a dozen small operations per token, which are one kernel here.
Supported are layers that normalise heads (optional), apply rotary embeddings and attend to a shared cache. A trial run of a
small copy of each layer decides.
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
}  # fmt: skip  # other arguments may mean that a layer does more
WIDTH = 8  # hidden size of a trial copy
TRIED = 3  # tokens per prompt and per completion in a trial
FAR = 100_000  # position of the first trial token: a layer may behave differently at large positions
CLOSE = 1e-5  # largest difference that rounding explains, relative to the largest value, at any magnitude


def place(model: nn.Module) -> int:
    """Patches the model's supported attention layers in place to decode with the fused kernel. Returns their number."""
    found = [module for module in model.modules() if {*PROJECTIONS} <= {*module._modules} and _gives_the_same(module)]
    for module in found:
        module.forward = MethodType(forward, module)
    return len(found)


def forward(self: Any, *given: Any, **named: Any) -> Any:
    """Forward pass of a patched layer: the fused kernel if it supports the inputs, else the layer's own forward pass."""
    cache, angles = named.get("past_key_values"), named.get("position_embeddings")
    if isinstance(cache, SharedCache) and cache.kernels and angles is not None and not given and not torch.is_grad_enabled():
        out = _step(self, cache.layers[self.layer_idx], named["hidden_states"], *angles)
        if out is not None:
            return out, None
    return type(self).forward(self, *given, **named)


def _step(module: Any, layer: SharedLayer, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor | None:
    """Attention of one new token per row: hidden [B, 1, H], cos and sin [1 or B, 1, D] -> [B, 1, H]. None if the kernel does
    not support the tensors, or the cache has no completion tokens yet.
    """
    if not layer.length or hidden.shape[1] != 1:
        return None
    rows, n, places, norms = len(hidden), layer.keys.shape[3], layer.places, _norms(module)
    fits = cos.shape == sin.shape == (len(cos), 1, n) and len(cos) in (1, rows)
    if not fits or norms is False or not fused.suits(hidden, cos, sin, layer.keys, layer.values, *layer.prompt):
        return None
    q, k, v = module.q_proj(hidden), module.k_proj(hidden), module.v_proj(hidden)
    if not fused.suits(q, k, v):
        return None
    at = layer.longer(1)
    q, k, v = (x.contiguous().view(rows, -1, n) for x in (q, k, v))
    prompts = *layer.prompt, places.prompt_of, places.bias
    angles = cos.contiguous()[:, 0], sin.contiguous()[:, 0]
    out = fused.attend_step(
        q, k, v, None if norms is True else norms, angles, prompts, (layer.keys, layer.values, at), module.scaling
    )
    attended: Tensor = module.o_proj(out.view(rows, 1, -1))
    return attended


def _norms(module: Any) -> tuple[Tensor, Tensor, float, float] | bool:
    """Weights of the query and key norms, their eps and offset. True without norms, False for norms not in the kernel."""
    norms = [module._modules[name] for name in NORMS if name in module._modules]
    if not norms:
        return True
    found = [fused.norm_of(norm) for norm in norms]
    hooked = any(norm._forward_hooks or norm._forward_pre_hooks for norm in norms)
    if len(found) == 1 or hooked or found[0] is None or found[1] is None or found[0][1:] != found[1][1:]:
        return False
    (of_q, eps, offset), (of_k, *_) = found[0], found[1]
    fit = fused.suits(of_q, of_k) and of_q.shape == of_k.shape == (module.head_dim,)
    return (of_q, of_k, eps, offset) if fit and of_q.is_contiguous() and of_k.is_contiguous() else False


def _looks_known(module: Any) -> bool:
    """Whether a module is an attention layer made only of supported parts, with norms and rotary embeddings in kernels."""
    parts, needed = module._modules, (("head_dim", int), ("scaling", float), ("layer_idx", int))
    if not {*parts} <= {*PROJECTIONS, *NORMS} or module._parameters or "forward" in vars(module) or _norms(module) is False:
        return False
    if not all(isinstance(getattr(module, name, None), kind) for name, kind in needed) or not fused.turns_by_kernel(module):
        return False
    return {*inspect.signature(type(module).forward).parameters} <= ARGUMENTS


@torch.no_grad()
def _gives_the_same(module: Any) -> bool:
    """Whether a copy with random projections and norms decodes the same with the kernel as with its own forward pass."""
    try:
        if not _looks_known(module):
            return False
        return all(_agree(_small(module, size), size) for size in fused.SIZES)  # some families clamp large values
    except Exception:  # a model's own code may fail in any way on unexpected inputs
        return False


def _agree(small: Any, size: float) -> bool:
    own, ours = (_decoded(small, size, by_kernel) for by_kernel in (False, True))
    return bool((own - ours).abs().max() <= CLOSE * own.abs().max())


def _small(module: Any, size: float) -> Any:
    """A copy of this attention layer with hidden size `WIDTH`. size: magnitude of its inputs."""
    draw, n, config = torch.Generator().manual_seed(0), module.head_dim, module.config
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    sizes = {name: (WIDTH, count * n) for name, count in zip(PROJECTIONS, (heads, groups, groups))}
    layers: dict[str, Any] = {}
    for name, (wide, out) in (sizes | {"o_proj": (heads * n, WIDTH)}).items():
        layers[name] = skip_init(nn.Linear, wide, out, bias=False)  # skips the init, which would use the global generator
        layers[name].weight.copy_(torch.randn(out, wide, generator=draw))
    for name in set(NORMS) & {*module._modules}:
        norm = module._modules[name]
        layers[name] = fused.copy_of(norm, parameters={"weight": nn.Parameter(torch.randn(n, generator=draw))})
        layers[name].forward = MethodType(norm.forward.__func__, layers[name])
    small = fused.copy_of(module, modules=layers)
    small.layer_idx = 0
    if _norms(module) is True:
        small.scaling /= size**2  # else one score would dominate, or all would be 0
    return small.eval()


def _decoded(small: Any, size: float, by_kernel: bool) -> Tensor:
    """The layer's output for three completions of two prompts, [3, TRIED, WIDTH]. size: magnitude of the hidden states."""
    draw, cache, rows = torch.Generator().manual_seed(1), SharedCache(1, TRIED, kernels=True), torch.tensor([0, 1, 1])
    hidden = torch.randn(3, 2 * TRIED, WIDTH, generator=draw) * size
    angles = 6 * torch.rand(1, 2 * TRIED, small.head_dim, generator=draw)

    def read(some: Tensor, places: slice) -> Tensor:
        cos_sin, ids = (angles[:, places].cos(), angles[:, places].sin()), FAR + torch.arange(2 * TRIED)[places]
        where = {"position_embeddings": cos_sin, "position_ids": ids[None], "cache_position": ids}
        first: Tensor = small(hidden_states=some, attention_mask=None, past_key_values=cache, **where)[0]
        return first

    with shared_attention(small.config):
        read(hidden[:2, :TRIED], slice(TRIED))
        cache.fan_out(rows, None)
        out = [read(hidden[:, TRIED, None], slice(TRIED, TRIED + 1))]
        for at in range(TRIED + 1, 2 * TRIED):
            some, places = hidden[:, at, None], slice(at, at + 1)
            cos_sin = angles[:, places].cos(), angles[:, places].sin()
            found = _step(small, cache.layers[0], some, *cos_sin) if by_kernel else read(some, places)
            assert found is not None  # else the trial would test nothing
            out.append(found)
        return torch.cat(out, 1)
