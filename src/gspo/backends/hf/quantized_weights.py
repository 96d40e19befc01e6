"""Quantized 4-bit or 8-bit weights below adapters (bitsandbytes): blocks of 64 values share a scale. Each product
dequantizes its weight, and the backward pass does so again, so that no layer's full weight is kept.

The result is the product with the rounded weight and the gradient of that product. Sampler and trainer hold the same
weights, so they differ only by rounding in the products.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo.backends.hf.layers import linear_layers, stacked

BLOCK = 64
BITS = {"nf4": 4, "int8": 8}  # per value


@contextmanager
def quiet() -> Iterator[None]:
    """Context for importing bitsandbytes: silences its warning about a CPU kernel for layers that are not used here."""
    log = logging.getLogger("bitsandbytes")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@cache
def library() -> Any:
    """The module bitsandbytes.functional."""
    with quiet():
        from bitsandbytes import functional
    return functional


class Packed(nn.Module):
    """A quantized weight [..., out, in]. kind: "nf4", 4 bits on the quantiles of a normal distribution (QLoRA, arXiv
    2305.14314), or "int8", 8 bits on a grid that is finer near 0 (arXiv 2110.02861).
    """

    data: Tensor
    absmax: Tensor
    code: Tensor

    def __init__(self, weight: Tensor, kind: str) -> None:
        super().__init__()
        functional = library()
        self.kind, self.shape, self.dtype = kind, weight.shape, weight.dtype
        # One block per row: if rows end within a block, bitsandbytes 0.50 gives different values on a CPU.
        rows, fill = weight.detach().flatten(), -weight.numel() % BLOCK
        rows = (F.pad(rows, (0, fill)) if fill else rows).view(-1, BLOCK)
        if kind == "nf4":
            data, state = functional.quantize_4bit(rows, blocksize=BLOCK, quant_type=kind)
        else:
            data, state = functional.quantize_blockwise(rows, blocksize=BLOCK)
        # Not in checkpoints, which hold only adapters: quantizing the same weights gives the same bits.
        for name, x in (("data", data), ("absmax", state.absmax), ("code", state.code)):
            self.register_buffer(name, x, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Packed:
        """Moves the buffers but never casts them: the scales must stay float32."""
        device = fn(self.absmax.new_zeros(1)).device
        for name, x in self._buffers.items():
            self._buffers[name] = None if x is None else x.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """The device of the data."""
        return self.data.device

    def whole(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dequantized weight, by default in its original dtype."""
        functional = library()
        rows = torch.Size((len(self.absmax), BLOCK))
        given: dict[str, Any] = {"shape": rows, "dtype": dtype or self.dtype, "quant_type": self.kind}
        state = functional.QuantState(self.absmax, code=self.code, blocksize=BLOCK, **given)
        make = functional.dequantize_4bit if self.kind == "nf4" else functional.dequantize_blockwise
        return make(self.data, state).flatten()[: self.shape.numel()].view(self.shape)

    def product(self, x: Tensor, ends: Tensor | None = None) -> Tensor:
        """x W^T for x [..., in]. For stacked experts, x [T, in] is sorted by expert, and expert e's rows end at ends[e]."""
        on = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if on else self.dtype
        return _Product.apply(x.to(dtype), self, ends)


class _Product(torch.autograd.Function):
    """Product that saves only the packed weight for the backward pass. Only x has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Packed, ends: Tensor | None) -> Tensor:
        """x W^T."""
        ctx.packed, ctx.ends = packed, ends
        weight = packed.whole(x.dtype)
        return F.linear(x, weight) if ends is None else F.grouped_mm(x, weight.transpose(1, 2), offs=ends)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """g W."""
        weight = ctx.packed.whole(gradient.dtype)
        if ctx.ends is None:
            return gradient @ weight, None, None
        return F.grouped_mm(gradient.contiguous(), weight, offs=ctx.ends), None, None


class PackedLinear(nn.Module):
    """A linear layer with a packed weight."""

    def __init__(self, linear: nn.Linear, kind: str, device: torch.device, make: type[Packed] = Packed) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = make(linear.weight.to(device), kind), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """x W^T + b."""
        out = self.weight.product(x)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def pack(
    model: PreTrainedModel, kind: str, device: torch.device, packs: Callable[[nn.Module], bool], make: type[Packed] = Packed
) -> None:
    """Quantizes linear layers and stacked experts in place, one weight at a time, on the device. Head, embeddings, routers
    and adapters are neither changed nor moved. Raises ValueError for experts of which `packs` says that they cannot read
    packed stacks, and for a model without linear layers.
    """
    whose = f'model.quantize = "{kind}": the {{}} of a {model.config.model_type} {{}}: leave it out'
    stacks = [found for found in stacked(model) if ".lora_" not in found[0]]
    # Subclasses of Linear may compute something else.
    plain = [name for name in linear_layers(model) if type(model.get_submodule(name)) is nn.Linear]
    linear = [name for name in plain if ".lora_" not in name]
    if not all(packs(module) for _, module, _ in stacks):
        raise ValueError(whose.format("experts", "are stacked in a way of their own, which is not packed here"))
    if not linear:
        raise ValueError(whose.format("layers", "are no linear layers of torch, so there is nothing to pack"))
    for name in linear:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, PackedLinear(model.get_submodule(name), kind, device, make))  # type: ignore[arg-type]
    for _, module, each in stacks:
        weight = module._parameters.pop(each)
        assert weight is not None
        setattr(module, each, make(weight.to(device), kind))
