"""The compiled kernels as torch operations with gradients, for float32 on a CPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from gspo.backends.hf.fused.build import library, sgemm

KNOWN = (Tensor, nn.Parameter, FakeTensor)  # other subclasses may store their data elsewhere


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels support these tensors in the current context. Fake tensors are supported for shape inference, but
    not while a program is traced: tracers cannot see a kernel.
    """
    for x in tensors:
        if type(x) not in KNOWN or x.dtype is not torch.float32 or x.device.type != "cpu":
            return False
        if type(x) is FakeTensor and get_proxy_mode() is not None:
            return False
    traced = torch.is_autocast_enabled("cpu") or torch.jit.is_tracing() or torch.compiler.is_exporting()
    return not traced and library() is not None


def multiplies() -> bool:
    """Whether the kernels can call torch's own matrix product."""
    return sgemm() is not None


def _run(kernel: str, *arguments: Any) -> Any:
    """Calls a kernel with the addresses of tensors and all other arguments unchanged. Does nothing for fake tensors."""
    if type(arguments[0]) is FakeTensor:
        return True
    given = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
    return getattr(library(), kernel)(*given, torch.get_num_threads())


def _sizes(*numbers: int) -> Any:
    return (ctypes.c_int64 * len(numbers))(*numbers)


BLOCK = 64  # rows per partial sum, as in kernels.cpp


def _apply(function: Any, *arguments: Any) -> Tensor:
    """Applies an autograd function, without autograd's overhead when gradients are off."""
    return function.apply(*arguments) if torch.is_grad_enabled() else function.forward(_Nothing, *arguments)


class _Nothing:
    """A stand-in for autograd's context."""

    @staticmethod
    def save_for_backward(*tensors: Tensor) -> None:
        """Does nothing."""


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        x = x.contiguous()
        y, rows = torch.empty_like(x), x.numel() // x.shape[-1]
        scale = x.new_empty(rows)
        _run("rms_norm", x, weight, y, scale, rows, x.shape[-1], eps, offset)
        ctx.save_for_backward(x, weight, scale)
        ctx.offset = offset
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, scale = ctx.saved_tensors
        rows, n = len(scale), x.shape[-1]
        dx = torch.empty_like(x)
        dweight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        part = None if dweight is None else x.new_empty(-(-rows // BLOCK), n)
        _run("rms_norm_backward", grad.contiguous(), x, weight, scale, dx, dweight, part, rows, n, ctx.offset)
        return dx, dweight, None, None


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x^2) + eps) (weight + offset) over the last dimension: x [..., n], weight [n]."""
    return _apply(_RMSNorm, x, weight, eps, offset)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = torch.empty_like(x)
        _rotate(x, y, 0, cos, sin)
        ctx.save_for_backward(cos, sin)
        ctx.layout = x.shape, y.stride()
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        dx = grad.new_empty_strided(*ctx.layout)
        _rotate(grad, dx, 1, *ctx.saved_tensors)
        return dx, None, None


def _rotate(x: Tensor, y: Tensor, back: int, cos: Tensor, sin: Tensor) -> None:
    b, heads, length, n = x.shape
    strides = _sizes(*x.stride()[:3]), _sizes(*y.stride()[:3])
    _run("rotary", x, strides[0], y, strides[1], cos, sin, len(cos), b, heads, length, n, back)


def turns(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether `rotary` supports these tensors: q and k [B, H or H', L, n], cos and sin [1 or B, L, n]."""
    return (
        suits(q, k, cos, sin)
        and q.ndim == k.ndim == 4 and q.stride(3) == k.stride(3) == 1 and q.shape[3] % 2 == 0
        and cos.shape == sin.shape and len(cos) in (1, len(q))
        and cos.shape[1:] == q.shape[2:] == k.shape[2:] and len(q) == len(k)
        and not (cos.requires_grad or sin.requires_grad)
    )  # fmt: skip


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin, for tensors that pass `turns`."""
    return _apply(_Rotary, x, cos.contiguous(), sin.contiguous())


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        y, n = torch.empty_like(gate), gate.shape[-1]
        _run("swiglu", gate, up, y, gate.numel() // n, n, n)
        ctx.save_for_backward(gate, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        dgate, dup, n = torch.empty_like(gate), torch.empty_like(up), gate.shape[-1]
        _run("swiglu_backward", grad.contiguous(), gate, up, dgate, dup, gate.numel() // n, n, n, n)
        return dgate, dup


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, [..., n]."""
    return _apply(_SwiGLU, gate, up)


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        rows, n = x.shape[0], x.shape[1] // 2
        y = x.new_empty(rows, n)
        _run("swiglu", x, x[:, n:], y, rows, n, 2 * n)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        dx, n = torch.empty_like(x), x.shape[1] // 2
        _run("swiglu_backward", grad.contiguous(), x, x[:, n:], dx, dx[:, n:], len(x), n, 2 * n, 2 * n)
        return dx


def swiglu_halves(x: Tensor) -> Tensor:
    """silu(gate) * up for x = [gate, up]: [rows, 2 n] -> [rows, n]."""
    return _apply(_Halves, x)


NOT_THERE = "a router chose an expert that is not there: there are {}"


@dataclass(frozen=True)
class Sorted:
    """Choices of experts [T, k], sorted by expert.

    Attributes:
        order: Flat index of the choice at each sorted position, [T k].
        place: Sorted position of each choice, [T k].
        ends: End of each expert's choices in the sorted order, [experts] int32.
        k: Experts per token.
    """

    order: Tensor
    place: Tensor
    ends: Tensor
    k: int


def sort_choices(chosen: Tensor, experts: int) -> Sorted:
    """Sorts chosen [T, k] by expert (stable). Raises IndexError for an expert that does not exist."""
    chosen = chosen.long().contiguous()
    order, place = torch.empty_like(chosen).view(-1), torch.empty_like(chosen).view(-1)
    ends = torch.empty(experts, dtype=torch.int32)
    if type(chosen) is not FakeTensor:
        made = library()
        assert made is not None
        given = [x.data_ptr() for x in (chosen, order, place, ends)]
        if not made.sort_choices(*given, chosen.numel(), experts):
            raise IndexError(NOT_THERE.format(experts))
    return Sorted(order, place, ends, chosen.shape[1])


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, choices: Sorted) -> Tensor:
        ctx.choices = choices
        return x.index_select(0, choices.order // choices.k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _combined(grad.contiguous(), ctx.choices, None), None


def sent(x: Tensor, choices: Sorted) -> Tensor:
    """Scatters tokens to their experts: x [T, n] -> [T k, n], one row per choice in sorted order."""
    return _Sent.apply(x, choices)


def _combined(x: Tensor, choices: Sorted, weights: Tensor | None) -> Tensor:
    tokens, n = len(x) // choices.k, x.shape[1]
    out = x.new_empty(tokens, n)
    _run("combine", x, choices.place, weights, out, tokens, choices.k, n)
    return out


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, choices: Sorted) -> Tensor:
        x, weights = x.contiguous(), weights.contiguous()
        ctx.choices = choices
        ctx.save_for_backward(x, weights)
        return _combined(x, choices, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weights = ctx.saved_tensors
        dx, dweights, place = torch.empty_like(x), torch.empty_like(weights), ctx.choices.place
        _run("combine_backward", grad.contiguous(), x, place, weights, dx, dweights, *weights.shape, x.shape[1])
        return dx, dweights, None


def combine(x: Tensor, weights: Tensor, choices: Sorted) -> Tensor:
    """Gathers the experts' outputs back: x [T k, n] in the order of `sent`, weights [T, k] -> weighted sums [T, n]."""
    return _Combine.apply(x, weights, choices)


def experts(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """All experts of a layer in one call, without gradient. Returns [T, H].

    Args:
        x: Hidden states [T, H].
        chosen: Expert indices [T, k].
        weights: Weights of the chosen experts [T, k].
        gate_up: Stacked gate and up projections [E, 2 I, H].
        down: Stacked down projections [E, H, I].

    Raises:
        IndexError: A chosen expert does not exist.
    """
    (tokens, n), (count, _, width), k = x.shape, down.shape, chosen.shape[1]
    stacks = gate_up.contiguous(), down.contiguous()
    out, made = x.new_empty(tokens, n), x.new_empty(tokens * k, n)
    arguments = (x.contiguous(), chosen.long().contiguous(), weights.contiguous(), *stacks, made, out)
    if not _run("experts", *arguments, tokens, k, n, width, count, sgemm()):
        raise IndexError(NOT_THERE.format(count))
    return out


def draw(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draws one token per row by inverse CDF, from logits [B, V] before the temperature and uniform random numbers [B] in
    [0, 1). Returns token ids [B] and their log-probabilities [B].
    """
    logits, uniforms, (rows, n) = logits.contiguous(), uniforms.contiguous(), logits.shape
    words, logp = torch.empty(rows, dtype=torch.long), torch.empty(rows)
    _run("draw", logits, uniforms, temperature, words, logp, rows, n)
    return words, logp


def attend(
    q: Tensor,
    prompt_keys: Tensor,
    prompt_values: Tensor,
    prompt_of: Tensor,
    bias: Tensor | None,
    keys: Tensor,
    values: Tensor,
    scale: float,
) -> Tensor:
    """Attention of one token per row over its prompt and its completion. Returns [B, H, D].

    Args:
        q: Queries [B, H, D].
        prompt_keys, prompt_values: Of the prompts [P, H', L, D].
        prompt_of: The prompt of each row [B].
        bias: Added to the scores of the prompts [P, L], or None.
        keys, values: Of the completions [B, H', T, D].
        scale: Factor on the scores.
    """
    (rows, heads, n), (_, groups, length, _), own = q.shape, prompt_keys.shape, keys.shape[2]
    if keys.stride() != values.stride() or keys.stride()[2:] != (n, 1):
        keys, values = keys.contiguous(), values.contiguous()  # the first token comes directly from the layer
    q = q.contiguous()
    out = torch.empty_like(q)
    strides = _sizes(*keys.stride()[:2])
    given = q, prompt_keys, prompt_values, prompt_of, bias, keys, values, strides, out
    _run("attend", *given, rows, groups, heads // groups, n, length, own, scale)
    return out


def attend_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float, float] | None,
    angles: tuple[Tensor, Tensor],
    prompts: tuple[Tensor, Tensor, Tensor, Tensor | None],
    cache: tuple[Tensor, Tensor, int],
    scale: float,
) -> Tensor:
    """`attend` fused with norms, rotary embeddings and cache update, for one new token per row. Returns [B, H, D].

    Args:
        q: Projected queries [B, H, D], contiguous.
        k, v: Projected keys and values [B, H', D], contiguous.
        norms: RMSNorm weights [D] for the heads of q and of k, eps and offset; None without norms.
        angles: cos and sin [1 or B, D].
        prompts: prompt_keys, prompt_values, prompt_of and bias, as in `attend`.
        cache: Keys and values [B, H', room, D], and the number of positions written. The new keys and values are appended.
        scale: Factor on the scores.
    """
    (rows, heads, n), (_, groups, length, _), (keys, values, own) = q.shape, prompts[0].shape, cache
    out = torch.empty_like(q)
    strides = _sizes(*keys.stride()[:2])
    given = q, k, v, *(norms or (None, None, 0.0, 0.0)), *angles, len(angles[0]), *prompts, keys, values, strides, out
    _run("attend_step", *given, rows, groups, heads // groups, n, length, own, scale)
    return out
