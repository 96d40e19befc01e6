"""The compiled kernels in a model's place for its own operations, wherever they give the same numbers.

What a module computes is found by trying a small copy of it, not by its name. A tensor that the kernels do not know (of
another type, on a GPU, under autocast) goes the model's own way.
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

TRIED = 23  # numbers a row of the copies that are tried: what looks at groups of numbers does not take so many
CLOSE = 1e-5  # largest difference that rounding explains, as a share of a row's largest number
SIZES = (1.0, 1e-4, 30.0, 1e4)  # of the numbers that are tried: some families clamp large ones
MARK = "_gspo_kernels"  # on experts
OFFSETS = (0.0, 1.0)  # what norms add to their weight


def place(model: nn.Module) -> bool:
    """Puts kernels into the layers of this model, in place, and into the rotary function of its family. False where there
    are none.
    """
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
    """What else tells modules of a class apart: one layer may clamp, and the next not."""
    return sorted((name, value) for name, value in vars(module).items() if isinstance(value, (bool, int, float, str)))


def _norm_of(module: nn.Module) -> Any:
    """The forward pass of an RMSNorm of this kind by its kernel; None for any other module."""
    eps = next((name for name in ("variance_epsilon", "eps") if isinstance(getattr(module, name, None), float)), None)
    weight = module._parameters.get("weight")
    if eps is None or weight is None or weight.ndim != 1 or len(module._parameters) != 1 or module._modules:
        return None
    tried = nn.Parameter(torch.linspace(-1, 2, TRIED))
    small = copy_of(module, parameters={"weight": tried})
    x = _rows(*SIZES, 1e20)  # the square of the last is no float32
    for offset in OFFSETS:
        own_eps, ours = getattr(small, eps), partial(ops.rms_norm, weight=tried, offset=offset)
        if not _same(small, partial(ours, eps=own_eps), x):
            continue
        setattr(small, eps, 0.1)  # it may be the eps of something else
        return _norm(eps, offset) if _same(small, partial(ours, eps=0.1), x) else None
    return None


def _rows(*sizes: float) -> Tensor:
    """Rows of random numbers of these sizes."""
    rows = torch.randn(len(sizes), TRIED, generator=torch.Generator().manual_seed(0))
    return rows * torch.tensor(sizes)[:, None]


def _kind(module: nn.Module) -> type:
    """Its class; of one that ranks share, the class that it was made of."""
    return next(kind for kind in type(module).__mro__ if not kind.__name__.startswith("FSDP"))


def copy_of(module: nn.Module, **tables: Any) -> Any:
    """A module with other parameters or modules in it, without hooks, and without one being made."""
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
    """The weight, eps and offset of an RMSNorm that is computed by its kernel; None for any other module."""
    name, offset = getattr(getattr(module, "forward", None), "norm", ("", 0.0))
    return (cast(Tensor, module.weight), float(getattr(module, name)), offset) if name else None


def turns_by_kernel(module: nn.Module) -> bool:
    """Whether the rotary embeddings of this module's family are computed by the kernel."""
    own = getattr(sys.modules.get(_kind(module).__module__), "apply_rotary_pos_emb", None)
    return hasattr(own, "by_kernel")


def _gated_of(module: nn.Module) -> Any:
    """The forward pass of a gated layer of this kind by its kernel; None for any other module."""
    names = ("gate_proj", "up_proj", "down_proj")
    if not all(isinstance(getattr(module, name, None), nn.Module) for name in names) or module._parameters:
        return None
    draw, layers = torch.Generator().manual_seed(0), {}
    for name in names:
        layers[name] = skip_init(nn.Linear, TRIED, TRIED, bias=False)  # which would draw
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
    """Whether these are experts whose gate `swiglu_halves` is."""
    x = _rows(*SIZES, *SIZES)
    return _same(cast(Any, module)._apply_gate, ops.swiglu_halves, torch.cat([x, x.flip(0)], 1))


def placed(experts: Any) -> bool:
    """Whether these experts are computed by kernels, where the tensors suit them."""
    return getattr(experts, MARK, False)


def _place_rotary(module: Any) -> None:
    """Rotary embeddings of a family, by its file of transformers: for all of its models in this process."""
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
    except Exception:  # it takes other arguments
        return
    if all(a.shape == b.shape and bool((a - b).abs().max() < CLOSE) for a, b in zip(ours, theirs)):
        module.apply_rotary_pos_emb = rotate


def _same(own: Any, ours: Any, x: Tensor) -> bool:
    """Whether both give the same numbers, row by row."""
    try:
        a, b = own(x), ours(x)
        return bool(a.shape == b.shape and ((a - b).abs() <= CLOSE * a.abs().amax(-1, keepdim=True)).all())
    except Exception:  # a model's own code may fail in any way on what it does not know
        return False
