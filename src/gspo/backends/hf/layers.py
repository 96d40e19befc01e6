"""The weights of a model for an inference engine: layer by layer, under their names in a Hugging Face folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gspo.backends.hf.routers import router_modules

STACKED = 3  # dimensions of a weight that stacks all experts along its first dimension


class Layers:
    """Groups the weights of a model, or this rank's shards of them, by layer for transfer to an engine: `names` by layer and
    `types` by name. dtype: that of the weights which an engine holds in the dtype of its products; None: no casts.
    """

    def __init__(self, model: PreTrainedModel, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self._model = model
        narrow = set() if dtype is None else set(multiplied(model))
        self.types = {name: dtype if dtype and p in narrow else p.dtype for name, p in weights.items()}
        layers: dict[str, list[str]] = {}
        for name in weights:
            layers.setdefault(_layer(name), []).append(name)
        self.names = list(layers.values())
        persistent = set(model.state_dict())
        self._beside: dict[int, dict[str, Tensor]] = {}  # by layer; buffers of a layer without weights go to layer 0
        for name, x in model.named_buffers():
            if name in persistent:  # replicated on all ranks
                number = list(layers).index(_layer(name)) if _layer(name) in layers else 0
                self._beside.setdefault(number, {})[name] = x.detach()

    def named(self, number: int, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Converts the unsharded weights of layer `number` on `device`, and its buffers, to the names and shapes of the
        Hugging Face folder, with experts unstacked.
        """
        here = {**tensors, **{name: x.to(device) for name, x in self._beside.get(number, {}).items()}}
        return {name: x.contiguous() for name, x in revert_weight_conversion(self._model, here).items()}


def multiplied(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that an engine holds in the dtype of its matrix products: linear layers, convolutions, embeddings and
    stacked experts. Not included are routers and the matrices of recurrences, which some engines keep in a wider dtype.
    """
    left_out = router_modules(model)
    for module in model.modules():
        plain = isinstance(module, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd)
        if module not in left_out:
            yield from (p for p in module.parameters(recurse=False) if p.ndim == STACKED or (plain and p.ndim > 1))


def stacked(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The weights that stack all experts of a layer: module name, module and weight name. Skips routers and convolutions."""
    left_out = router_modules(model)
    for name, module in model.named_modules():
        if module not in left_out and not isinstance(module, nn.modules.conv._ConvNd):
            yield from ((name, module, own) for own, p in module.named_parameters(recurse=False) if p.ndim == STACKED)


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The names of the linear layers except the head and routers. Experts are usually stacked and so not included."""
    left_out = {model.get_output_embeddings()} | router_modules(model)
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module not in left_out]


def _layer(name: str) -> str:
    """The group of a weight: the prefix of its layer, or its own name if it is outside the layers."""
    numbered = re.match(r".*?\.\d+\.", name)
    return numbered[0] if numbered else name
