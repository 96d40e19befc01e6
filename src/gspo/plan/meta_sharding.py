"""A sharded model as one rank would hold it, without weights and without the other ranks.

transformers shards the model on the meta device over a fake process group, just as sharded.py does over a real one. What is
counted here is what FSDP2 would place on the rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.distributed import DistributedConfig
from transformers.initialization import no_tie_weights

from gspo.backends.hf.files import check_expert_parallel, expert_counts, read_config
from gspo.backends.hf.layers import STACKED
from gspo.backends.hf.load import autocast_type, without_weights
from gspo.backends.hf.mixed_precision_sharding import NARROW, narrow_gathers
from gspo.backends.hf.model import DTYPES
from gspo.backends.hf.sharded import check_tied, shards
from gspo.config.policy import ModelConfig
from gspo.distributed.ranks import local
from gspo.plan.cost_model import Layer, Shape, Spread, Weight


@dataclass(frozen=True)
class ShardedLayout:
    """The layout of a sharded model."""

    name: str  # of its class
    held: int  # parameters on the first rank
    layers: tuple[Layer, ...]  # weights gathered together; a head tied to the embeddings apart from them
    weights: tuple[Weight, ...]  # each once
    shape: Shape
    embedded: int  # parameters of the embeddings, which are only looked up


@contextmanager
def fake_ranks(size: int) -> Iterator[None]:
    """Makes this process rank 0 of a fake process group."""
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard_on_meta(cfg: ModelConfig, spread: Spread) -> ShardedLayout:
    """The layout of the model on the first rank, gathered as on GPUs. Raises ValueError if it cannot be sharded that way."""
    config = read_config(cfg)
    top_k, count = expert_counts(config)
    check_expert_parallel(cfg, spread.experts, count)
    with no_tie_weights():
        model: Any = without_weights(cfg)
    with fake_ranks(spread.ranks):
        if spread.ranks > 1:
            with narrow_gathers(autocast_type(cfg.autocast, "cuda", DTYPES[cfg.dtype])):
                model = laid_out(model, cfg, spread)
        layers = layers_of(model, count)
        embeddings: Any = model.get_input_embeddings()
        embedded, shape = embeddings.weight.numel(), shape_of(model, top_k, count)
        model.tie_weights()
        if spread.ranks > 1:
            check_tied(model, cfg)
        experts = experts_of(model, count)
        weights = tuple(weight_of(p, p in experts) for p in model.parameters())
        held = sum(local(p).numel() for p in model.parameters())
        return ShardedLayout(type(model).__name__.removeprefix("FSDP"), held, layers, weights, shape, embedded)


def laid_out(model: Any, cfg: ModelConfig, spread: Spread) -> Any:
    """The model sharded as `from_pretrained` does it before it reads weights."""
    layout = DistributedConfig(fsdp_size=spread.shards, dp_replicate_size=spread.replicas, ep_size=spread.experts)
    try:
        layout, _, mesh = model.prepare_distribute_model(layout)
        return model.maybe_distribute_model(model, layout, mesh)
    except ValueError as error:
        raise ValueError(f"model.path = {cfg.path!r} cannot be laid out among {spread.ranks} ranks: {error}") from error


def experts_of(model: nn.Module, count: int) -> set[nn.Parameter]:
    """Weights that stack all experts of a mixture, one per row, and parameters beside them with as many rows."""
    found: set[nn.Parameter] = set()
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if count > 1 and any(p.ndim == STACKED and len(p) == count for p in own):
            found |= {p for p in own if len(p) == count}
    return found


def weight_of(parameter: nn.Parameter, experts: bool, narrow: bool = False) -> Weight:
    """The Weight of a parameter: its rows, and the numbers per row."""
    return Weight(len(parameter), math.prod(parameter.shape[1:]), experts, narrow)


def layers_of(model: Any, count: int) -> tuple[Layer, ...]:
    """The weights by the outermost module that gathers them. Kept: the root's, and what FSDP does not reshard."""
    experts = experts_of(model, count)
    units = shards(model)[1:]
    nested = {inner for unit in units for inner in unit.modules() if inner is not unit}
    layers, seen = [], set[nn.Parameter]()
    for unit in units:
        if unit in nested:
            continue
        groups = {id(group): group for inner in shards(unit) if (group := inner._get_fsdp_state()._fsdp_param_group)}
        for kept in (False, True):
            weights = []
            for group in groups.values():
                if (group.post_forward_mesh_info is None) == kept:
                    own = [p for p in (one.sharded_param for one in group.fsdp_params) if p not in seen]
                    seen |= set(own)
                    weights += [weight_of(p, p in experts, group.mp_policy == NARROW) for p in own]
            layers += [Layer(tuple(weights), kept)] if weights else []
    rest = tuple(weight_of(p, p in experts) for p in model.parameters() if p not in seen)
    return (*layers, Layer(rest, kept=True)) if rest else tuple(layers)


def shape_of(model: Any, top_k: int, count: int) -> Shape:
    """The dimensions of the model, from its config; the experts' width from their weights."""
    config = model.config.get_text_config()
    hidden, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 0
    size = getattr(config, "head_dim", None) or hidden // max(heads, 1)
    experts = experts_of(model, count)
    modules = [module for module in model.modules() if experts & set(module.parameters(recurse=False))]
    numbers = sum(p.numel() // count for p in modules[0].parameters(recurse=False)) if modules else 0
    return Shape(
        hidden=hidden,
        layers=config.num_hidden_layers,
        queries=heads * size,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * size,
        width=getattr(config, "intermediate_size", None) or 4 * hidden,
        mixtures=len(modules),
        taken=top_k,
        expert_width=round(numbers / (3 * hidden)),
    )
