"""What ranks gather in bfloat16: the weights that autocast rounds to it for its products anyway. Their shards, gradients'
sums and AdamW's state stay in float32.

FSDP2 gathers a group of weights in one type. So norms, routers and whatever else autocast leaves alone are groups of their
own, a small one for each layer, in float32; so are embeddings and the head.
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

# States stay as wide as in one process: autocast narrows them for products alone.
NARROW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)


@contextmanager
def narrow_gathers(dtype: torch.dtype | None) -> Iterator[None]:
    """Models that transformers lays out in shards meanwhile are gathered so. dtype: autocast's (None: it is off)."""
    real = fsdp.fully_shard
    if dtype is not None:
        assert dtype == NARROW.param_dtype, "autocast knows bfloat16 alone"
        fsdp.fully_shard = partial(_shard, real)
    try:
        yield
    finally:
        fsdp.fully_shard = real


def _shard(real: Callable[..., Any], unit: Any, **options: Any) -> Any:
    """`fully_shard`, with bfloat16 for a layer or for the experts of one."""
    wide = (
        None if isinstance(unit, (list, nn.Linear, PreTrainedModel)) else float32_modules(unit)
    )  # others: the head, the root
    if wide is None:
        return real(unit, **options)
    if wide:
        real(wide, **options | {"reshard_after_forward": False})  # they are small: gathered once a pass
    return real(unit, **options | {"mp_policy": NARROW})


def float32_modules(unit: nn.Module) -> list[nn.Module] | None:
    """The modules of a layer whose weights are gathered as they are. None where all are: autocast rounds none of them, or
    one may stand in a module that has weights of another kind.
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
    """Whether weights of this module are read by matrix products alone: a linear layer's, or those of stacked experts. None
    where only some may be: stacked ones with others beside them, as biases of experts, which no autocast rounds.
    """
    if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
        return isinstance(module, nn.Linear)
    stacked = {p.ndim == STACKED for p in module.parameters(recurse=False)}
    return stacked.pop() if len(stacked) == 1 else None
