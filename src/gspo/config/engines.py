"""The engine of `sampler.engine`: its name, the user's function that it may be, how many servers and GPUs vLLM takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gspo.config.import_function import load_function, unknown_arguments
from gspo.config.rollout import SamplerConfig
from gspo.config.source_kind import FUNCTION
from gspo.config.suggestions import nearest
from gspo.config.values import shown

ENGINES = ("embedded", "vllm")
DIRECT = ("quantization", "kv_cache_dtype", "speculative_config")
"""Arguments of vLLM that are settings of `[sampler]`: what they change has to be known here."""
PRECISION = DIRECT[:2]
"""Those by which vLLM rounds weights, keys or values."""
AROUND = {*DIRECT, "quantization_config", "q", "calculate_kv_scales"}
"""Arguments of vLLM that set the same, or a part of it."""
OURS = {
    "disable_log_stats": False, "enable_scale_out": True, "generation_config": "vllm", "logprobs_mode": "processed_logprobs",
    "port": None, "worker_extension_cls": "gspo_vllm.Extension",
}  # fmt: skip
"""Arguments of vLLM that the run sets, and how; the port differs. Without log statistics, a long completion looks like an
engine that hangs."""
NO_WEIGHTS = ("ngram", "ngram_gpu")
"""Methods of speculative decoding without weights."""
INEXACT = ("suffix", "custom_class")
"""Methods whose samples depend on other requests, or on code that is not known here."""
EXACT = {
    *("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "draft_sample_method"),
    *("draft_tensor_parallel_size", "max_model_len", "quantization", "kv_cache_dtype", "revision", "attention_backend"),
}
"""Keys of `sampler.speculative_config` that leave the distribution as it is, with any value."""


def servers_of(sampler: SamplerConfig) -> int:
    """Number of vLLM servers that a run starts."""
    return 0 if sampler.engine != "vllm" or sampler.urls else sampler.engines


def underscored(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's arguments by the names that code here looks up: users may also write them as its command line does, with -."""
    return {name.replace("-", "_"): value for name, value in arguments.items()}


def vllm_arguments(sampler: SamplerConfig) -> dict[str, Any]:
    """The arguments that vLLM is given, also those given by key (`speculative-config.method`)."""
    given = underscored(sampler.engine_args) if sampler.engine == "vllm" else {}
    return {name.split(".")[0]: value for name, value in given.items()}


def devices_each(arguments: Mapping[str, Any]) -> int:
    """Number of GPUs of a server with these vLLM arguments. Raises ValueError as `parallel_size` does."""
    return math.prod(parallel_size(arguments, kind) for kind in ("tensor", "pipeline", "data"))


def parallel_size(arguments: Mapping[str, Any], kind: str) -> int:
    """vLLM's argument `KIND_parallel_size`. Raises ValueError if it is no size."""
    size = underscored(arguments).get(f"{kind}_parallel_size", 1)
    if type(size) is not int or size < 1:
        given = f"sampler.engine_args = {{{kind}_parallel_size = {shown(size)}}}"
        raise ValueError(f"{given}: expected a whole number of GPUs or copies, at least 1")
    return size


def check_engine_name(engine: str) -> None:
    """Refuses a `sampler.engine` that is no engine and no `module:function`. Raises ValueError."""
    if engine not in ENGINES and not FUNCTION.fullmatch(engine):
        allowed = f"{', '.join(ENGINES)}, module:function{nearest(engine, ENGINES)}"
        raise ValueError(f"sampler.engine = {engine!r}: allowed are {allowed}")


def engine_function(sampler: SamplerConfig) -> Callable[..., Any]:
    """The function that `sampler.engine` names. Raises ValueError if there is none, or if it does not take its arguments."""
    function = load_function(sampler.engine, "sampler.engine")
    if problem := unknown_arguments(function, sampler.engine_args, "config", "model"):
        given = f"sampler.engine_args = {shown(sampler.engine_args, 'sampler.engine_args')}"
        raise ValueError(f"{given}: {sampler.engine} cannot be called with (config, model, **engine_args): {problem}")
    return function


def direct_arguments(given: SamplerConfig, names: Sequence[str] = DIRECT) -> dict[str, Any]:
    """vLLM's arguments that are settings of the same name, where these are set."""
    default = SamplerConfig()
    return {name: getattr(given, name) for name in names if getattr(given, name) != getattr(default, name)}
