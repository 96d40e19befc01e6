"""Builds the learner of a run: policy, optimizer and objective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from gspo.assembly.micro_batch_limit import micro_batches_of
from gspo.assembly.models import check_experts, check_routers
from gspo.backends.hf.critic import Critic
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.quantized_weights import Packed
from gspo.config.policy import ResolvedOptimizer
from gspo.config.schema import Config, RunConfig
from gspo.config.source_kind import in_environment
from gspo.config.stages import rollout_at
from gspo.distributed.ranks import Ranks
from gspo.learner.imitation import Imitation
from gspo.learner.learner import LocalLearner, PolicyLearner
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer, lr_for
from gspo.objective.algorithms import ALGORITHMS


def learning(
    config: RunConfig, model: HFModel, frozen: Mapping[str, HFPolicy], ranks: Ranks | None = None
) -> tuple[HFPolicy, PolicyLearner]:
    """The policy of a reinforcement learning run, with a critic if the algorithm has one, and its learner."""
    algorithm, train = config.algorithm, config.train
    critic = Critic(model, algorithm.critic) if ALGORITHMS[algorithm.name].critic else None
    settings = config.rollout.temperature, train.layout, train.gradient_checkpointing
    policy = HFPolicy(model, *settings, critic, router_logits=algorithm.aux_loss > 0)
    optimizer = optimizer_of(config, policy, train.steps * algorithm.mini_batches * algorithm.epochs)
    weight = config.teacher.weight if config.teacher.path else 0.0
    objective = PolicyObjective(ALGORITHMS[algorithm.name], algorithm, config.rollout.max_completion_length, weight)
    learner = PolicyLearner(
        policy, optimizer, objective, micro_batches_of(config, ranks),
        router_replay=algorithm.router_replay, frozen=frozen, scale=algorithm.scale_rewards,
        seed=train.seed,
    )  # fmt: skip
    check_experts(config, model)
    check_routers(config, model)
    return policy, learner


def supervised_learning(
    config: Config, model: HFModel, frozen: Mapping[str, HFPolicy] = {}, ranks: Ranks | None = None
) -> tuple[HFPolicy, LocalLearner]:
    """The policy of a supervised run, and its learner."""
    check_experts(config, model)
    policy = HFPolicy(model, 1.0, config.train.layout, config.train.gradient_checkpointing)
    optimizer = optimizer_of(config, policy, config.train.steps)
    return policy, LocalLearner(policy, optimizer, Imitation(), micro_batches_of(config, ranks))


LEARNERS: dict[str, Callable[..., tuple[HFPolicy, LocalLearner]]] = {"train": learning, "sft": supervised_learning}


def longest_read(config: Config, prompts: Sequence[int], step: int) -> int:
    """Tokens of the longest completion that memory is checked for, prompt included. prompts: tokens of each; none for `gspo
    serve`. A conversation counts up to two micro-batches: few use all their turns in full.
    """
    prompt, limit = max(prompts, default=1), rollout_at(config.rollout, config.stage, step).max_completion_length
    if prompts and not in_environment(config.task):
        return prompt + limit
    most = 2 * config.train.micro_batch_tokens
    return max(prompt + limit, min(prompt + limit * config.task.max_turns, most) if prompts else most)


def optimizer_of(config: Config, policy: HFPolicy, updates: int) -> Optimizer:
    """The optimizer for a run of `updates` updates. Raises ValueError if the device has no 8-bit kernels for it."""
    if config.optimizer.name == "adamw_8bit" and policy.device.type not in ("cpu", "cuda"):
        why = f"bitsandbytes has no such kernels for {policy.device.type}"
        raise ValueError(f'optimizer.name = "adamw_8bit": {why}: set "adamw", or model.device = "cpu"')
    optimizer = ResolvedOptimizer(**vars(config.optimizer) | {"lr": learning_rate(config, policy.model)})
    names = norms_and_biases(policy.model.model)
    kept = [p for name, p in policy.model.named_parameters() if name in names]
    skipped, offload = config.train.max_skipped_updates, config.train.offload_optimizer
    return Optimizer(policy.parameters(), optimizer, updates, skipped, offload, kept)


def learning_rate(config: Config, model: HFModel) -> float:
    """optimizer.lr, where "auto" follows from the size of the model."""
    lr = config.optimizer.lr
    return lr_for(size(model), bool(config.lora.rank)) if isinstance(lr, str) else lr


def size(model: HFModel) -> int:
    """Number of parameters of the whole model, without adapters and critic. Quantized weights count as before."""
    weights = sum(p.numel() for name, p in model.model.named_parameters() if "lora_" not in name)
    return weights + sum(module.shape.numel() for module in model.model.modules() if isinstance(module, Packed))


def norms_and_biases(model: nn.Module) -> set[str]:
    """Names of parameters without weight decay, whatever their shape: Cohere's norms have one vector per head."""
    names = set()
    for path, module in model.named_modules():
        norm = "Norm" in type(module).__name__ or "norm" in path.rpartition(".")[2].lower()
        names |= {name for name, _ in module.named_parameters(path, recurse=False) if norm or name.endswith("bias")}
    return names
