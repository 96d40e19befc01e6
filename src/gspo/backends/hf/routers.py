"""The routers of a mixture of experts: finds these modules, and reads the chosen experts from their outputs.

A router is a transformers module whose class is named `...TopKRouter` or `...TopkRouter`, or is listed in `READ`. Imports
torch only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Answer = tuple[Tensor, Tensor]  # logits [..., E], chosen experts [..., k]


def plain(router: Any, outputs: Any) -> Answer:
    """Outputs are logits, weights, experts."""
    return outputs[0], outputs[2]


def of_probabilities(router: Any, outputs: Any) -> Answer:
    """As `plain`, but with softmax probabilities instead of logits (Gemma 4). Their logarithm has the same softmax."""
    return outputs[0].clamp_min(torch.finfo(outputs[0].dtype).tiny).log(), outputs[2]


def scattered(router: Any, outputs: Any) -> Answer:
    """Outputs are scores [T, E], 0 for experts that were not chosen, and logits (Llama 4)."""
    return outputs[1], outputs[0].topk(router.top_k, dim=-1).indices


def by_expert(router: Any, outputs: Any) -> Answer:
    """Outputs include the indices [T * k] of the choices sorted by expert, the count per expert, and logits (JetMoE)."""
    places, counts, logits = outputs[0], outputs[3], outputs[4]
    experts = torch.arange(len(counts), device=places.device).repeat_interleave(torch.tensor(counts, device=places.device))
    return logits, torch.empty_like(places).index_copy_(0, places, experts).view(len(logits), -1)


READ: dict[str, Callable[[Any, Any], Answer]] = {
    "AfmoeTokenChoiceRouter": plain,
    "HunYuanMoEV1Gate": plain,
    "Gemma4TextRouter": of_probabilities,
    "Llama4Router": scattered,
    "JetMoeTopKGating": by_expert,
}
FIXED = {"DeepseekV4HashRouter"}  # the token id determines the experts: there is no choice to record
EXPERTS = re.compile(r"(Experts|MoE|Moe|MOE|MoeBlock|MoEBlock|MoELayer|MoeLayer|SparseMLP)$")


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers of a model's text part, in layer order; [] for a dense model."""
    return [module for module in _text(model).modules() if reader(module) is not None]


def router_modules(model: nn.Module) -> set[nn.Module]:
    """The routers and all modules in them."""
    return {part for router in routers(model) for part in router.modules()}


def answer(router: nn.Module, outputs: Any) -> Answer:
    """The logits [..., E], with gradient, and the chosen experts [..., k] from a router's outputs."""
    read = reader(router)
    assert read is not None
    return read(router, outputs)


def reader(module: nn.Module) -> Callable[[Any, Any], Answer] | None:
    """The function that reads this router's outputs; None for any other module."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith("transformers."):  # remote code has classes of the same name with other outputs
            read = plain if kind.__name__.lower().endswith("topkrouter") else READ.get(kind.__name__)
            if read is not None:
                return read
    return None


def _text(model: nn.Module) -> nn.Module:
    """The text part of a model. Routers of an image tower see none of our tokens."""
    decoder = getattr(model, "get_decoder", lambda: None)()
    return model if decoder is None else decoder


def unknown_experts(model: nn.Module) -> str:
    """The class name of experts whose router is unknown, so that its choices cannot be recorded; "" if there are none."""
    modules = [(name.replace(".base_layer", ""), module) for name, module in _text(model).named_modules()]  # below PEFT's
    known = [name for name, module in modules if reader(module) is not None or type(module).__name__ in FIXED]
    for name, module in modules:
        if name.rpartition(".")[2] == "experts" or EXPERTS.search(type(module).__name__):
            above = name.rpartition(".")[0]
            if not any(router.startswith((f"{name}.", f"{above}.")) for router in known):
                return type(module).__name__
    return ""


def no_routers(model: nn.Module) -> str:
    """Why `routers` finds none in this model."""
    name, experts = type(model).__name__, unknown_experts(model)
    if not experts:
        return f"{name} is dense (no top-k routers)"
    return f"{name} is a mixture of experts whose routing gspo does not see (it knows no router of {experts})"
