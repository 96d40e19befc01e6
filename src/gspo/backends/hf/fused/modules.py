"""Patches a model to use the compiled kernels wherever they give the same results as its own operations.

A trial run of a small copy determines what a module computes, not its name. Tensors that the kernels do not support (another
dtype, on a GPU, under autocast) take the model's own code path.
"""

from __future__ import annotations

import sys
from functools import partial, wraps
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from gspo.backends.hf.fused import ops
from gspo.backends.hf.fused.build import library

TRIED = 23  # row width in trials: a prime, so that grouped operations fail on it
CLOSE = 1e-5  # largest difference that rounding explains, relative to a row's largest value
SIZES = (1.0, 1e-4, 30.0, 1e4)  # magnitudes of trial inputs: some families clamp large values
MARK = "_gspo_kernels"  # attribute of experts
OFFSETS = (0.0, 1.0)  # constants that norms add to their weight


def place(model: nn.Module) -> bool:
    """Patches the layers of this model, in place, and the rotary function of its family. False if there are no kernels."""
    if library() is None:
        return False
    found: dict[Any, Any] = {}
    rotaries = set()
    with torch.no_grad():
        for module in model.modules():
            kind = _kind(module)
            if kind.__module__.startswith("transformers.models."):
                rotaries.add(kind.__module__)
            alike = kind, *module._parameters, *module._modules, *_plain(module)
            if alike not in found:
                found[alike] = _norm_of(module) or _gated_of(module)
            if (forward := found[alike]) is not None:
                module.forward = MethodType(forward, module)
            elif hasattr(module, "_apply_gate"):
                setattr(module, MARK, _gate_of(module))
    for name in rotaries:
        _place_rotary(sys.modules[name])
    return True


def _plain(module: nn.Module) -> list[tuple[str, Any]]:
    """Plain attributes that distinguish modules of the same class: one layer may clamp values and the next may not."""
    return sorted((name, value) for name, value in vars(module).items() if isinstance(value, (bool, int, float, str)))


def _norm_of(module: nn.Module) -> Any:
    """A forward pass with the RMSNorm kernel; None if the module is not a supported RMSNorm."""
    eps = next((name for name in ("variance_epsilon", "eps") if isinstance(getattr(module, name, None), float)), None)
    weight = module._parameters.get("weight")
    if eps is None or weight is None or weight.ndim != 1 or len(module._parameters) != 1 or module._modules:
        return None
    tried = nn.Parameter(torch.linspace(-1, 2, TRIED))
    small = copy_of(module, parameters={"weight": tried})
    x = _rows(*SIZES, 1e20)  # the square of the last overflows float32
    for offset in OFFSETS:
        own_eps, ours = getattr(small, eps), partial(ops.rms_norm, weight=tried, offset=offset)
        if not _same(small, partial(ours, eps=own_eps), x):
            continue
        setattr(small, eps, 0.1)  # checks that this attribute is the eps in use
        return _norm(eps, offset) if _same(small, partial(ours, eps=0.1), x) else None
    return None


def _rows(*sizes: float) -> Tensor:
    """One row of random numbers for each of these magnitudes."""
    rows = torch.randn(len(sizes), TRIED, generator=torch.Generator().manual_seed(0))
    return rows * torch.tensor(sizes)[:, None]


def _kind(module: nn.Module) -> type:
    """The module's class; for an FSDP module, the class before sharding."""
    return next(kind for kind in type(module).__mro__ if not kind.__name__.startswith("FSDP"))


def copy_of(module: nn.Module, **tables: Any) -> Any:
    """A copy of a module with other parameters or submodules, without hooks and without calling its constructor."""
    small: Any = object.__new__(_kind(module))
    nn.Module.__init__(small)
    kept = {name: value for name, value in vars(module).items() if name not in vars(small)}
    vars(small).update(kept | {"_modules": dict(module._modules)} | {f"_{name}": table for name, table in tables.items()})
    return small


def _norm(eps: str, offset: float) -> Any:
    def forward(self: Any, *given: Any, **named: Any) -> Tensor:
        weight: Tensor = self.weight
        x: Any = given[0] if len(given) == 1 and not named else None
        fits = x is not None and ops.suits(x, weight) and weight.shape == x.shape[-1:]
        if fits and weight.is_contiguous() and weight.numel():
            return ops.rms_norm(x, weight, getattr(self, eps), offset)
        return type(self).forward(self, *given, **named)

    forward.norm = eps, offset  # type: ignore[attr-defined]
    return forward


def norm_of(module: nn.Module) -> tuple[Tensor, float, float] | None:
    """The weight, eps and offset of an RMSNorm that runs in the kernel; None for any other module."""
    name, offset = getattr(getattr(module, "forward", None), "norm", ("", 0.0))
    return (cast(Tensor, module.weight), float(getattr(module, name)), offset) if name else None


def turns_by_kernel(module: nn.Module) -> bool:
    """Whether the rotary embeddings of this module's family run in the kernel."""
    own = getattr(sys.modules.get(_kind(module).__module__), "apply_rotary_pos_emb", None)
    return hasattr(own, "by_kernel")


def _gated_of(module: nn.Module) -> Any:
    """A forward pass with the SwiGLU kernel; None if the module is not a supported gated layer."""
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(isinstance(getattr(module, name, None), nn.Module) for name in names) or module._parameters:
        return None
    draw, layers = torch.Generator().manual_seed(0), {}
    for name in names:
        layers[name] = skip_init(nn.Linear, TRIED, TRIED, bias=False)  # skips the init, which would use the global generator
        layers[name].weight.copy_(torch.randn(TRIED, TRIED, generator=draw))
    small = copy_of(module, modules=module._modules | layers)
    ours = _gated()
    return ours if _same(small, partial(ours, small), _rows(*SIZES)) else None


def _gated() -> Any:
    def forward(self: Any, *given: Any, **named: Any) -> Tensor:
        if len(given) != 1 or named or not ops.suits(given[0]):
            return type(self).forward(self, *given, **named)
        gate, up = self.gate_proj(given[0]), self.up_proj(given[0])
        known = ops.suits(gate, up) and gate.shape == up.shape and gate.shape[-1]
        return self.down_proj(ops.swiglu(gate, up) if known else self.act_fn(gate) * up)

    return forward


def _gate_of(module: nn.Module) -> bool:
    """Whether the gate of these experts is `swiglu_halves`."""
    x = _rows(*SIZES, *SIZES)
    return _same(cast(Any, module)._apply_gate, ops.swiglu_halves, torch.cat([x, x.flip(0)], 1))


def placed(experts: Any) -> bool:
    """Whether these experts run in kernels if the tensors suit them."""
    return getattr(experts, MARK, False)


def _place_rotary(module: Any) -> None:
    """Patches the rotary function in a family's transformers module, for all of its models in this process."""
    own = getattr(module, "apply_rotary_pos_emb", None)
    if own is None or hasattr(own, "by_kernel"):
        return
    q = torch.randn(2, 3, 4, 2 * TRIED, generator=torch.Generator().manual_seed(0))
    angle = torch.linspace(0, 6, 8 * TRIED).view(1, 4, 2 * TRIED)

    @wraps(own)
    def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if more or named or not ops.turns(q, k, cos, sin):
            return own(q, k, cos, sin, *more, **named)
        return ops.rotary(q, cos, sin), ops.rotary(k, cos, sin)

    rotate.by_kernel = True  # type: ignore[attr-defined]
    try:
        ours, theirs = rotate(q, q[:, :1], angle.cos(), angle.sin()), own(q, q[:, :1], angle.cos(), angle.sin())
    except Exception:  # the function takes other arguments
        return
    if all(a.shape == b.shape and bool((a - b).abs().max() < CLOSE) for a, b in zip(ours, theirs)):
        module.apply_rotary_pos_emb = rotate


def _same(own: Any, ours: Any, x: Tensor) -> bool:
    """Whether both functions give the same result, row by row."""
    try:
        a, b = own(x), ours(x)
        return bool(a.shape == b.shape and ((a - b).abs() <= CLOSE * a.abs().amax(-1, keepdim=True)).all())
    except Exception:  # a model's own code may fail in any way on unexpected inputs
        return False
