"""Compatibility with ART (Agent Reinforcement Trainer): its settings and members, and what gspo has in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspo.agents.trajectories import TrainCall

# Arguments of art.TrainConfig, art.dev.TrainConfig and the backends' `train`: neutral value, and where gspo sets it.
ELSEWHERE: dict[str, tuple[Any, str]] = {
    "kl_penalty_coef": (0, "algorithm.beta"),
    "kl_penalty_reference_step": (None, "algorithm.beta, of the model that training began with"),
    "kl_ref_adapter_path": (None, "algorithm.beta, of the model that training began with"),
    "epsilon": (None, "algorithm.epsilon"),
    "epsilon_high": (None, "algorithm.epsilon_high"),
    "ppo": (False, "algorithm.name"),
    "scale_rewards": (True, "algorithm.scale_rewards"),
    "truncated_importance_sampling": (None, "algorithm.correction"),
    "precalculate_logprobs": (False, "algorithm.old_logprobs"),
    "save_checkpoint": (True, "train.save_every"),
    "verbose": (False, "the run folder's events.jsonl and metrics.jsonl"),
    "logprob_calculation_chunk_size": (1024, "train.micro_batch_tokens"),
}
OURS = ("learning_rate", "importance_sampling_level")
# Members of art.Model and art.TrainableModel, with gspo's counterparts.
MEMBERS = {
    "inference_base_url": "base_url", "inference_api_key": "api_key", "inference_model_name": "name",
    "get_inference_name": "name", "get_step": "step", "delete_checkpoints": "train.keep_checkpoints",
    "train_sft": "gspo.sft",
    "register": "gspo.serve, which gives a model that is ready", "backend": "gspo.serve, which gives a model that is ready",
}  # fmt: skip


def settings(config: Any, arguments: Mapping[str, Any]) -> TrainCall:
    """Merges `config` (a TrainCall or ART's TrainConfig) and the keyword arguments of `train`, which take precedence.

    Raises ValueError for a setting that cannot change per call, naming the configuration field that sets it, and TypeError
    for an unknown argument.
    """
    values = {} if config is None else dict(vars(config))
    values |= arguments.get("_config") or {}
    values |= arguments
    values.pop("_config", None)
    for name, value in values.items():
        if name in OURS:
            continue
        if name not in ELSEWHERE:
            raise TypeError(f"train() has no argument {name!r}: it takes {', '.join(OURS)}")
        neutral, where = ELSEWHERE[name]
        if value != neutral:
            raise ValueError(f"{name} = {value!r}: train() cannot set it for one call; the run has it as {where}")
    return TrainCall(**{name: values[name] for name in OURS if name in values})
