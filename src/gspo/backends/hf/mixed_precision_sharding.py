"""All-gathers in bfloat16 the weights that autocast would round to bfloat16 anyway. Their shards, the reduction of their
gradients and AdamW's state stay in float32.

FSDP2 gathers a group of weights in one dtype. So norms, routers and other weights that autocast does not round form a
separate small float32 group in each layer. Embeddings and the head are float32 groups too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import PreTrainedModel
from transformers.distributed import fsdp

from gspo.backends.hf.layers import STACKED
from gspo.backends.hf.routers import reader

# Hidden states keep the dtype that they have in one process: autocast casts them only for matrix products.
NARROW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


@contextmanager
def narrow_gathers(dtype: torch.dtype | None) -> Iterator[None]:
    """Context in which transformers shards models for such mixed-precision gathers. dtype: autocast's, None if it is off."""
    real = fsdp.fully_shard
    if dtype is not None:
        fsdp.fully_shard = partial(_shard, real)
    try:
        yield
    finally:
        fsdp.fully_shard = real


def _shard(real: Callable[..., Any], unit: Any, **options: Any) -> Any:
    """`fully_shard` with bfloat16 gathers for a layer, or for the experts of a layer."""
    whole = isinstance(unit, (list, nn.Linear, PreTrainedModel))  # the head and the root
    wide = None if whole else float32_modules(unit)
    if wide is None:
        return real(unit, **options)
    if wide:
        real(wide, **options | {"reshard_after_forward": False})  # small, so they are gathered once per pass
    return real(unit, **options | {"mp_policy": NARROW})


def float32_modules(unit: nn.Module) -> list[nn.Module] | None:
    """The modules of a layer whose weights are gathered without a cast. None if that is all of them: autocast rounds none,
    or a module mixes weights that it rounds with others.
    """
    wide, narrow, waiting = list[nn.Module](), False, [unit]
    while waiting:
        module = waiting.pop()
        own, every = (list(module.parameters(recurse)) for recurse in (False, True))
        if isinstance(module, FSDPModule) or not every:
            continue
        if reader(module) is not None:
            wide.append(module)
        elif not own:
            waiting += module.children()
        elif len(own) < len(every) or (alike := autocast_rounds(module)) is None:
            return None
        elif alike:
            narrow = True
        else:
            wide.append(module)
    return wide if narrow else None


def autocast_rounds(module: nn.Module) -> bool | None:
    """Whether only matrix products read this module's weights, as in a linear layer or stacked experts. None for a mix, such
    as stacked weights with expert biases, which autocast does not round.
    """
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return isinstance(module, nn.Linear)
    stacked = {p.ndim == STACKED for p in module.parameters(recurse=False)}
    return stacked.pop() if len(stacked) == 1 else None
