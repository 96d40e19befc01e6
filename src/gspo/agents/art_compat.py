"""Compatibility with ART (Agent Reinforcement Trainer): what gspo has in place of its settings, metrics and members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspo.agents.trajectories import TrainCall
from gspo.runs.log import is_number
from gspo.types import Metrics

NOTHING = "gspo has nothing like it: leave it out"
# Arguments of art.TrainConfig, art.dev.TrainConfig, the backends' `train` and PipelineTrainer: the value without effect, and
# where gspo sets it. loss_fn: PipelineTrainer always names ART's default, whatever the backend.
ELSEWHERE: dict[str, tuple[Any, str]] = {
    "loss_fn": ("cispo", "algorithm.name"),
    "loss_fn_config": (None, "[algorithm]"),
    "ppo": (False, "algorithm.name"),
    "epsilon": (None, "algorithm.epsilon"),
    "epsilon_high": (None, "algorithm.epsilon_high"),
    "scale_rewards": (True, "algorithm.scale_rewards"),
    "normalize_advantages": (True, "algorithm.scale_rewards"),
    "truncated_importance_sampling": (None, "algorithm.correction"),
    "precalculate_logprobs": (False, "algorithm.old_logprobs"),
    "kl_penalty_coef": (0, "algorithm.beta, in the loss and not in the advantage"),
    "kl_penalty_reference_step": (None, "algorithm.beta, of the model that training began with"),
    "kl_ref_adapter_path": (None, "algorithm.beta, of the model that training began with"),
    "moe_routing_replay_path": (None, "algorithm.router_replay"),
    "moe_routing_replay_bundle": (None, "algorithm.router_replay"),
    "moe_routing_replay_strict": (True, "algorithm.router_replay"),
    "adam_params": (None, "[optimizer]"),
    "save_checkpoint": (True, "train.save_every"),
    "grad_accumulation_sequences": (None, "algorithm.mini_batches, and train.micro_batch_tokens for memory"),
    "packed_sequence_length": (None, "train.micro_batch_tokens"),
    "logprob_calculation_chunk_size": (1024, "train.micro_batch_tokens"),
    "verbose": (False, "the run folder's events.jsonl and metrics.jsonl"),
    "plot_tensors": (False, "the run folder's report.html"),
    "kimi_k2_tau": (None, NOTHING),
    "advantage_balance": (0, NOTHING),
    "mask_prob_ratio": (False, NOTHING),
    "max_negative_advantage_importance_sampling_weight": (None, NOTHING),
    "scale_learning_rate_by_reward_std_dev": (False, NOTHING),
    "num_trajectories_learning_rate_multiplier_power": (0, NOTHING),
    "allow_training_without_logprobs": (False, "nothing: gspo trains on what its endpoint has sampled, and only on that"),
}
OURS = ("learning_rate", "importance_sampling_level")
# ART's names of metrics; those without one are gspo/NAME.
METRICS = {
    "loss": "loss/train", "entropy": "loss/entropy", "grad_norm": "loss/grad_norm", "lr": "loss/learning_rate",
    "time/train": "time/step_trainer_s", "updates": "data/step_num_gradient_steps",
}  # fmt: skip
ADAPTERS = {"r": "rank", "lora_alpha": "alpha", "target_modules": "targets"}
"""ART's peft_args, as keys of [lora]."""


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
            why = where if where == NOTHING else f"train() cannot set it for one call; the run has it as {where}"
            raise ValueError(f"{name} = {value!r:.80}: {why}")
    return TrainCall(**{name: values[name] for name in OURS if name in values})


def adapters(model: Any) -> dict[str, Any]:
    """The section [lora] for art.TrainableModel: its peft_args. Raises ValueError for others of its _internal_config."""
    internal = dict(model._internal_config or {})
    given = internal.pop("peft_args", {})
    for name, value in (internal | {name: value for name, value in given.items() if name not in ADAPTERS}).items():
        where = 'give gspo.ArtBackend its settings, such as model={"dtype": ...} or sampler={"engine_args": ...}'
        raise ValueError(f"_internal_config: {name} = {value!r:.80}: gspo does not read it; leave it out, and {where}")
    return {ADAPTERS[name]: value for name, value in given.items()}


def in_arts_names(metrics: Metrics) -> dict[str, float]:
    """The numbers of a step for ART's log."""
    return {METRICS.get(name, f"gspo/{name}"): float(value) for name, value in metrics.items() if is_number(value)}
