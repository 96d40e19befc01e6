"""A GPU without one: tensors with real numbers that say they are on "cuda", and count what a host would wait for.

A tensor of the fake device holds one of the CPU, and each operation on it is the CPU's own, so the results can be compared
with those of the CPU, bit for bit. It raises where tensors of both devices meet in one operation; as with CUDA a number
(0-dim) of the CPU may stand beside any other, and so may indices, which are then copied.

Not tested by this: CUDA's own kernels, and what they or torch's C++ code wait for inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gspo.backends.hf import flex

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
SOURCE = Path(__file__).parents[1] / "src" / "gspo"
# What the host waits for. A copy from memory that is not pinned waits as well unless it says `non_blocking`; then it is only
# staged, which is counted apart.
NUMBER, TO_HOST, SIZE, TO_DEVICE = "a number", "a copy to the host", "a size", "a copy to the device"
ALL = "all that was asked"
STAGED = "a staged copy"
# The size of what these give depends on numbers. bincount and histc look at the least and the largest.
SIZED = {
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.bincount.default, aten.argwhere.default,
}  # fmt: skip
INDEXED = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
}  # fmt: skip
COPIES = {aten.copy_.default, aten._to_copy.default}


# Of what CUDA alone has kernels.
KERNELS: dict[Any, Callable[..., Tensor]] = {
    aten.histc.default: lambda x, *args, **kwargs: torch.histc(x.double(), *args, **kwargs).to(x.dtype),  # of int32
    aten.mm.dtype: lambda a, b, dtype: torch.mm(a.to(dtype), b.to(dtype)),
}


# What torch says of it: room for anything.
ANSWERS: dict[str, Any] = {
    "device_count": 1, "current_device": 0, "get_device_capability": (9, 0), "mem_get_info": (1 << 40, 1 << 40),
    "memory_reserved": 0, "memory_allocated": 0, "max_memory_allocated": 0, "reset_peak_memory_stats": None,
    "get_rng_state": torch.zeros(0), "set_rng_state": None,
}  # fmt: skip


class Sync(NamedTuple):
    """One wait: what for, and where in gspo's code (`file:line`), or in whose if not in gspo's."""

    kind: str
    place: str


class OnGPU(Tensor):
    """A tensor of the fake device; `elem` is the CPU's that it holds. C++ code takes it for one of the CPU."""

    elem: Tensor
    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, elem: Tensor) -> OnGPU:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elem.shape, strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype
        )
        made.elem = elem
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the fake GPU, which is not there any more")

    def __deepcopy__(self, memo: Any) -> OnGPU:
        copied = OnGPU(self.elem.clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True  # as torch marks a parameter of another class
        return memo.setdefault(id(self), copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.elem.__reduce_ex__(protocol)  # as files have it

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OnGPU({self.elem!r})"


class _Moved(torch.autograd.Function):
    """Between the devices, and back with the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.elem.clone() if isinstance(x, OnGPU) else OnGPU(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Moved.forward(ctx, gradients[0])


class FakeGPU:
    """The device while it is there. syncs: what was waited for; staged: copies that were not, from memory not pinned."""

    def __init__(self) -> None:
        self.syncs: list[Sync] = []
        self.staged: list[Sync] = []
        self.inside = False  # a call from Python that was given tensors of this device: what it makes is there too
        self.pinned: set[int] = set()

    def waits(self, kind: str) -> None:
        """Notes a wait, or a staged copy."""
        (self.staged if kind == STAGED else self.syncs).append(Sync(kind, _place()))

    def clear(self) -> None:
        """Begins to count again."""
        self.syncs.clear()
        self.staged.clear()

    @contextmanager
    def watched(self) -> Iterator[list[Sync]]:
        """What is waited for within."""
        self.clear()
        yield (seen := [])
        seen += self.syncs

    def copied(self, host: Tensor | None, to_host: bool, non_blocking: bool) -> None:
        """Notes a copy between the devices. host: what lies in the host's memory; None: room that is made for it."""
        pinned = id(host) in self.pinned
        if to_host and not (non_blocking and pinned):  # else it comes while the GPU works on
            self.waits(TO_HOST)
        elif not to_host and not non_blocking:
            self.waits(TO_DEVICE)
        elif not pinned:
            self.waits(STAGED)


def _place() -> str:
    """The innermost line of gspo that now runs; where there is none, of a library."""
    frame, library = sys._getframe(2), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(SOURCE)):
            return f"{Path(name).relative_to(SOURCE)}:{frame.f_lineno}"
        if not library and "torch/" not in name and not name.startswith(str(Path(__file__).parent)):
            library = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return library


def plain_flex(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float, enable_gqa: bool, kernel_options: Any
) -> Tensor:
    """FlexAttention without its kernel, which this device has not: all pairs, under the same mask."""
    place = torch.arange(query.shape[2], device=query.device)
    pairs = block_mask.mask_mod(None, None, place[:, None], place[None])
    return F.scaled_dot_product_attention(query, key, value, pairs, scale=scale, enable_gqa=enable_gqa)


def _on_gpu(tree: Any) -> bool:
    return any(isinstance(x, OnGPU) for x in tree_leaves(tree))


class _Operations(TorchDispatchMode):
    """What the device does with each operation."""

    def __init__(self, gpu: FakeGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        here = [x for x in given if isinstance(x, OnGPU)]
        if not here and (given or not gpu.inside):
            return func(*args, **kwargs)
        self._check(func, args, kwargs, given)
        held = {id(x.elem): x for x in here}
        out = KERNELS.get(func, func)(*tree_map(_held, args), **tree_map(_held, kwargs))
        if func is aten.copy_.default and not isinstance(args[0], OnGPU):
            return args[0]

        def back(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return held[id(x)] if id(x) in held else OnGPU(x)

        return tree_map(back, out)

    def _check(self, func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> None:
        """Counts a wait. Raises RuntimeError where the devices are mixed."""
        gpu = self.gpu
        if func is aten._local_scalar_dense.default or func is aten.equal.default:
            gpu.waits(NUMBER)
        elif func in SIZED or (func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
            gpu.waits(SIZE)
        elif func in INDEXED:
            indices = [x for x in args[1] if x is not None]
            if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
                gpu.waits(SIZE)
            for x in indices:
                if not isinstance(x, OnGPU):
                    gpu.waits(TO_DEVICE)
            given = [x for x in given if not any(x is index for index in indices)]
        elif func in COPIES:
            target, source = isinstance(args[0], OnGPU), args[1] if len(args) > 1 else args[0]
            if isinstance(source, OnGPU) != target and (source.ndim or not target):
                gpu.copied(
                    source if target else args[0],
                    not target,
                    bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2])),
                )
            return
        mixed = [tuple(x.shape) for x in given if not isinstance(x, OnGPU) and x.ndim]
        if mixed:
            raise RuntimeError(f"{func}: tensors on cuda:0 and on cpu (of shapes {mixed}) at {_place()}")


def _held(x: Any) -> Any:
    return x.elem if isinstance(x, OnGPU) else x


class _Calls(TorchFunctionMode):
    """What Python asks torch for: where tensors are made, and where they go."""

    def __init__(self, gpu: FakeGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch._C._nn._parse_to:  # of a module's `to`, which then asks each tensor
            return func(*args, **kwargs)
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._moved(func, args, kwargs)
        if func in (Tensor.storage, Tensor.untyped_storage, Tensor.data_ptr):
            return func(_held(args[0]))
        if func is Tensor.tolist and isinstance(args[0], OnGPU):
            self.gpu.waits(NUMBER if not args[0].ndim else TO_HOST)
            return args[0].elem.tolist()
        if func is Tensor.numpy and isinstance(args[0], OnGPU):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if target := _device(kwargs.get("device")):
            kwargs.pop("device")
        pin = kwargs.pop("pin_memory", False)
        before, self.gpu.inside = self.gpu.inside, _on_gpu((args, kwargs)) if target is None else target
        try:
            if func is torch.tensor or func is torch.as_tensor:
                made, self.gpu.inside = self._made_of(func, args, kwargs, target), before
                return made
            out = func(*args, **kwargs)
            if target is False and isinstance(out, OnGPU):  # torch.empty_like(x, device="cpu")
                out = out.elem
            elif target and isinstance(out, Tensor) and not isinstance(out, OnGPU):  # torch.zeros_like(x, device="cuda")
                out = OnGPU(out)
        finally:
            self.gpu.inside = before
        if pin:
            self.gpu.pinned.add(id(out))
        return out

    def _made_of(self, func: Any, args: Any, kwargs: Any, target: bool | None) -> Any:
        """Of numbers in the host's memory, which are copied where they go."""
        if isinstance(args[0], OnGPU):
            return args[0]
        self.gpu.inside = False
        made = func(*args, **kwargs)
        if not target:
            return made
        self.gpu.copied(made, to_host=False, non_blocking=False)
        return OnGPU(made)

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        x, *rest = args
        flags = [value for value in rest if isinstance(value, bool)] if func is Tensor.to else []
        non_blocking = bool(kwargs.pop("non_blocking", flags[0] if flags else False))
        target = _device(kwargs.pop("device", None)) if func is Tensor.to else func is Tensor.cuda
        kept = []
        for value in rest if func is Tensor.to else ():
            if isinstance(value, Tensor):
                target, value = isinstance(value, OnGPU), value.dtype
            if isinstance(value, (str, torch.device)):
                target = _device(value)
            elif isinstance(value, torch.dtype):
                kept.append(value)
        here = isinstance(x, OnGPU)
        if target is not None and target != here:
            self.gpu.copied(None if here else x, here, non_blocking)
            with torch._C.DisableTorchFunction():
                x = _Moved.apply(x)
            here = target
        if func is not Tensor.to or not (kept or kwargs):
            return x
        before, self.gpu.inside = self.gpu.inside, here
        try:
            return x.to(*kept, **kwargs)
        finally:
            self.gpu.inside = before


def _device(device: Any) -> bool | None:
    """Whether this is the fake device; None where none is named."""
    return None if device is None else torch.device(device).type == "cuda"


def _grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of what C++ code takes for tensors of the CPU."""

    def grouped(*args: Any) -> Any:
        found = {}
        for (_, dtype), (lists, numbers) in function(*args).items():
            found[next(x for x in lists[0] if x is not None).device, dtype] = lists, numbers
        return found

    return grouped


def _as_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Of autocast's functions: the fake device's is the CPU's."""

    def asked(device: Any = None, *args: Any) -> Any:
        return function(*(() if device is None else ("cpu" if device == "cuda" else device,)), *args)

    return asked


@contextmanager
def fake_gpu() -> Iterator[FakeGPU]:
    """The fake device is there within: `torch.device("cuda")`, `.to("cuda")`, `torch.autocast("cuda")`."""
    gpu, autocast, run_backward = FakeGPU(), torch.autocast.__init__, torch.autograd._engine_run_backward
    calls = _Calls(gpu)

    def begin(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        autocast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def backward(*args: Any, **kwargs: Any) -> Any:
        with calls:  # the functions that are passed back through have calls of their own
            return run_backward(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(flex, "kernel", lambda: plain_flex)
        for name, answer in ANSWERS.items():
            patch.setattr(torch.cuda, name, lambda *given, answer=answer: answer)
        patch.setattr(torch.cuda, "synchronize", lambda device=None: gpu.waits(ALL))
        patch.setattr(torch, "inference_mode", torch.no_grad)  # it knows no tensors of other classes
        patch.setattr(torch.autocast, "__init__", begin)
        patch.setattr(torch.autograd, "_engine_run_backward", backward)
        for name in ("is_autocast_enabled", "get_autocast_dtype", "is_autocast_available"):
            for holder in (torch, torch._C, torch.amp, torch.amp.autocast_mode):
                if hasattr(holder, name):
                    patch.setattr(holder, name, _as_cpu(getattr(torch, name, None) or getattr(torch.amp, name)))
        patch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)  # those that are tied stay so
        patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", _grouped(torch._C._group_tensors_by_device_and_dtype))
        stack.enter_context(_Operations(gpu))
        stack.enter_context(calls)
        yield gpu
