"""Measures the memory of a model and of the activations that a pass saves for backward, without allocating it:
transformers' own code runs on fake tensors (shape and dtype, no data). Only config.json is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_layers import GradientCheckpointingLayer

from gspo.backends.hf import experts
from gspo.backends.hf.load import autocast_type, without_weights
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.model import DTYPES, HFModel
from gspo.backends.hf.one_sequence import one_sequence_a_row
from gspo.backends.hf.quantized_weights import BITS, BLOCK, Packed, pack
from gspo.config.policy import LoraConfig, ModelConfig

FEW, MORE = 2, 4  # rows of the two trial passes; their difference gives the bytes per token
CPU = torch.device("cpu")  # of the fake tensors, whatever device the plan is for


@dataclass(frozen=True)
class ModelMemory:
    """Memory of a model in one process."""

    weights: int  # bytes of all weights and buffers, as stored
    trained: tuple[int, ...]  # parameters in each trained weight
    width: int  # bytes per trained parameter
    unpacked: int  # bytes of the largest packed weight, unpacked for a matrix product


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes that autograd saves in a pass through the model without its head."""

    each: float  # per token
    fixed: float  # whatever the number of tokens
    layer: float  # per token in the largest layer
    fixed_layer: float


def measure(cfg: ModelConfig, lora: LoraConfig, length: int) -> tuple[ModelMemory, ActivationMemory | None]:
    """Memory of the model of `cfg`, adapters and packed weights included, and of the activations of a pass over padded rows
    of `length` tokens (None if its code does not run without data). Raises ValueError as loading does.
    """
    model = _meta_model(cfg, lora)
    with FakeTensorMode(), _FakeGroupedProducts(), one_sequence_a_row():
        _make_fake(model.model)
        if cfg.quantize != "none":
            pack(model.model, cfg.quantize, CPU, experts.takes_adapters, FakePackedWeight)
        memory = _model_memory(model)
        try:
            few, more = (_saved_bytes(model, rows, length) for rows in (FEW, MORE))
        except Exception:  # transformers' code may read data in any way
            return memory, None
    each, *layers = ((b - a) / (MORE - FEW) for a, b in zip(few, more))
    fixed, *fixed_layers = (a - FEW * slope for a, slope in zip(few, (each, *layers)))
    layer, fixed_layer = max(zip(layers, fixed_layers), default=(each, fixed))
    return memory, ActivationMemory(each / length, max(0.0, fixed), layer / length, max(0.0, fixed_layer))


def device_type(cfg: ModelConfig) -> str:
    """The device type that the plan is for; "auto" means a GPU, even if this machine has none."""
    return "cuda" if cfg.device == "auto" else torch.device(cfg.device).type


def _meta_model(cfg: ModelConfig, lora: LoraConfig) -> HFModel:
    """The model of a run on the meta device, with its adapters."""
    model = without_weights(cfg)
    if cfg.attention == "eager":  # flash attention saves what sdpa saves
        model.set_attn_implementation("eager")
    if model._can_set_experts_implementation():
        eager = cfg.expert_kernels == "eager" and cfg.quantize == "none"
        model.set_experts_implementation("eager" if eager else experts.NAME)
    made = HFModel(model, None, autocast_type(cfg.autocast, device_type(cfg), DTYPES[cfg.dtype]))  # type: ignore[arg-type]
    if not lora.rank:
        return made
    made.model.name_or_path = cfg.path or "model"  # else it would warn of a model without a name
    return adapted(made, lora)


def _make_fake(model: nn.Module) -> None:
    """Replaces all tensors by empty ones on the CPU, so that a pass can run. Tied tensors stay tied."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, x in table.items():
                if x is not None and x not in made:
                    empty = torch.empty(x.shape, dtype=x.dtype, device=CPU)
                    trained = isinstance(x, nn.Parameter)
                    made[x] = nn.Parameter(empty, x.requires_grad) if trained else empty
                if x is not None:
                    table[name] = made[x]  # type: ignore[assignment]


def _model_memory(model: HFModel) -> ModelMemory:
    weights = sum(x.nbytes for x in [*model.model.parameters(), *model.model.buffers()])
    trained = [p for p in model.model.parameters() if p.requires_grad]
    packed = [module.shape.numel() for module in model.model.modules() if isinstance(module, Packed)]
    largest = max(packed, default=0) * model.compute_dtype.itemsize
    return ModelMemory(weights, tuple(p.numel() for p in trained), max(p.itemsize for p in trained), largest)


def _saved_bytes(model: HFModel, rows: int, length: int) -> list[float]:
    """Bytes that a pass over `rows` rows saves: of the whole model, then of each layer that may be recomputed."""
    seen = {x.untyped_storage()._cdata for x in [*model.model.parameters(), *model.model.buffers()]}
    saved: list[torch.UntypedStorage] = []  # kept alive, so that no address is reused
    begun: list[int] = []
    layers: list[float] = []

    def save(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            saved.append(storage)
        return x.detach()  # x itself would keep its own graph alive

    def enter(*args: Any) -> None:
        begun.append(len(saved))

    def leave(*args: Any) -> None:
        layers.append(float(sum(storage.nbytes() for storage in saved[begun.pop() :])))

    hooks = [
        hook
        for module in model.model.modules() if isinstance(module, GradientCheckpointingLayer)
        for hook in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave))
    ]  # fmt: skip
    model.model.eval()  # as a policy does
    ids = torch.zeros(rows, length, dtype=torch.long, device=CPU)
    positions = {"position_ids": ids.clone()} if "position_ids" in model.inputs else {}
    with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
        model.hidden(input_ids=ids, **positions)
    for hook in hooks:
        hook.remove()
    return [float(sum(storage.nbytes() for storage in saved)), *layers]


class FakePackedWeight(Packed):
    """A packed weight of the right size without data."""

    def __init__(self, weight: Tensor, kind: str) -> None:
        nn.Module.__init__(self)
        self.kind, self.shape, self.dtype = kind, weight.shape, weight.dtype
        blocks = -(-weight.numel() // BLOCK)
        sizes = {"data": (blocks * BLOCK * BITS[kind] // 8, torch.uint8), "absmax": (blocks, torch.float32)}
        for name, (size, dtype) in (sizes | {"code": (2 ** BITS[kind], torch.float32)}).items():
            self.register_buffer(name, torch.empty(size, dtype=dtype, device=weight.device), persistent=False)

    def whole(self, dtype: torch.dtype | None = None) -> Tensor:
        """An empty tensor of its shape."""
        return torch.empty(self.shape, dtype=dtype or self.dtype, device=self.device)


class _FakeGroupedProducts(TorchDispatchMode):
    """Grouped matrix products (experts) on fake tensors of any dtype: torch's own version of them takes only bfloat16."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._grouped_mm.default:
            x, weight = args[:2]
            return x.new_empty(len(x), weight.shape[-1])
        return func(*args, **(kwargs or {}))
