"""The vLLM servers that a run starts, as its settings say. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gspo.config.rollout import SamplerConfig


def servers_of(sampler: SamplerConfig) -> int:
    """How many servers a run starts."""
    return 0 if sampler.engine != "vllm" or sampler.urls or sampler.in_process else sampler.engines


def devices_each(arguments: Mapping[str, Any]) -> int:
    """How many GPUs a server uses that gets these arguments of vLLM's."""
    return math.prod(arguments.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data"))
