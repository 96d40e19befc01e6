"""How many vLLM servers a run starts, and how many GPUs each uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gspo.config.rollout import SamplerConfig


def servers_of(sampler: SamplerConfig) -> int:
    """Number of vLLM servers that a run starts."""
    return 0 if sampler.engine != "vllm" or sampler.urls else sampler.engines


def devices_each(arguments: Mapping[str, Any]) -> int:
    """Number of GPUs of a server with these vLLM arguments."""
    return math.prod(arguments.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline", "data"))
