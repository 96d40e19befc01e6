"""The weights of a model as an engine reads them: a layer at a time, by the names that its Hugging Face folder has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gspo.backends.hf.routers import routers

STACKED = 3  # dimensions of a weight that holds all experts, an expert a row


class Layers:
    """How the weights of a model travel. weights: by name, or this rank's shards of them. dtype: of what an engine holds in
    the type of its matrix products; None: all as it is. names: of the weights of each layer. types: of each of them.
    """

    def __init__(self, model: PreTrainedModel, weights: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
        self._model = model
        narrow = set() if dtype is None else set(multiplied(self._model))
        self.types = {name: dtype if dtype and p in narrow else p.dtype for name, p in weights.items()}
        layers: dict[str, list[str]] = {}
        for name in weights:
            layers.setdefault(_layer(name), []).append(name)
        self.names = list(layers.values())
        persistent = set(self._model.state_dict())
        self._beside: dict[int, dict[str, Tensor]] = {}  # the buffers of each layer; with the first where it has no weights
        for name, x in self._model.named_buffers():
            if name in persistent:  # each rank has them whole
                number = list(layers).index(_layer(name)) if _layer(name) in layers else 0
                self._beside.setdefault(number, {})[name] = x.detach()

    def named(self, number: int, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """A layer's weights, whole, and its buffers, as the folder has them: stacked experts apart. {} for one that is not
        there. device: where the tensors are.
        """
        here = {**tensors, **{name: x.to(device) for name, x in self._beside.get(number, {}).items()}}
        if not here:
            return {}
        return {name: x.contiguous() for name, x in revert_weight_conversion(self._model, here).items()}


def multiplied(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that an engine holds in the type of its matrix products: those of linear layers, convolutions, embeddings
    and stacked experts. Routers are left out, and the matrices of recurrences, which some engines keep wider.
    """
    left_out = {part for router in routers(model) for part in router.modules()}
    for module in model.modules():
        plain = isinstance(module, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd)
        if module not in left_out:
            yield from (p for p in module.parameters(recurse=False) if p.ndim == STACKED or (plain and p.ndim > 1))


def stacked(model: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """The weights that hold all experts of a layer, an expert a row: their module with its name, and their own. Routers and
    convolutions have none.
    """
    left_out = {part for router in routers(model) for part in router.modules()}
    for name, module in model.named_modules():
        if module not in left_out and not isinstance(module, nn.modules.conv._ConvNd):
            yield from ((name, module, own) for own, p in module.named_parameters(recurse=False) if p.ndim == STACKED)


def _layer(name: str) -> str:
    """What travels together: the weights of a layer, or of what is beside the layers."""
    numbered = re.match(r".*?\.\d+\.", name)
    return numbered[0] if numbered else name
