"""Whole updates of tiny models, in every way that a device may be asked for, on any device: real ones and the fake one."""

import dataclasses
from contextlib import nullcontext
from functools import cache

import torch

from gspo.backends.hf.critic import Critic
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, LoraConfig, ModelConfig, ResolvedOptimizer
from gspo.learner import layout
from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.backends.hf.test_policy import completions

CASES = {
    "dense": {},
    "dense, autocast": {"autocast": "bfloat16"},
    "dense, bfloat16": {"dtype": "bfloat16"},
    "dense, shared": {"layout": "shared"},
    "dense, three micro-batches": {"budget": 45},
    "dense, checkpointing": {"checkpointing": True},
    "dense, KL": {"beta": 0.01},
    "dense, offloaded moments": {"offload": True},
    "dense, adapters": {"rank": 4},
    "dense, critic": {"algorithm": "ppo", "critic": "shared"},
    "dense, critic of its own": {"algorithm": "ppo", "critic": "copy"},
    "mixture": {"name": "qwen3_moe"},
    "mixture, autocast": {"name": "qwen3_moe", "autocast": "bfloat16"},
    "mixture, shared": {"name": "qwen3_moe", "layout": "shared"},
    "mixture, three micro-batches": {"name": "qwen3_moe", "budget": 45},
    "mixture, R2, checkpointing": {"name": "qwen3_moe", "replay": "R2", "checkpointing": True},
    "mixture, auxiliary loss": {"name": "qwen3_moe", "aux_loss": 0.01},
    "mixture, adapters": {"name": "qwen3_moe", "rank": 4, "autocast": "bfloat16"},
    "windows": {"name": "gemma3"},
    "tokens": {"algorithm": "grpo"},
    "turns": {"algorithm": "gspo_turn"},
}  # fmt: skip


def config_of(name, layout):
    """FlexAttention on a GPU wants heads of at least 16 numbers."""
    return FAMILIES[name] | ({"head_dim": 16} if layout == "shared" else {})


@cache
def batch_of(name, layout="padded"):
    """Completions of three prompts whose advantages differ, half of them by a policy that has moved away since."""
    g = torch.Generator().manual_seed(1)
    made = []
    for i, c in enumerate(completions(build_tiny(config_of(name, layout), TOKENIZER))):
        old = c.logp_mu + 0.01 * torch.randn(len(c.logp_mu), generator=g) * (i % 2)
        value = 1.0 - 2.0 * (i % 3)
        made.append(dataclasses.replace(c, logp_mu=old, logp_old=old, advantage=value, reward=value))
    return made


def learner_of(device, name="qwen3", autocast="none", dtype="float32", layout="padded", budget=10_000, checkpointing=False,
               algorithm="gspo", critic="", replay="none", rank=0, beta=0.0, aux_loss=0.0, offload=False):  # fmt: skip
    cfg = ModelConfig(device=device, autocast=autocast, dtype=dtype)
    model = build_tiny(config_of(name, layout), TOKENIZER, 0, cfg)
    if rank:
        model = adapted(model, LoraConfig(rank=rank))
    policy = HFPolicy(
        model, layout=layout, gradient_checkpointing=checkpointing, critic=Critic(model, critic) if critic else None,
        router_logits=aux_loss > 0,
    )  # fmt: skip
    frozen = {"logp_ref": HFPolicy(build_tiny(FAMILIES[name], TOKENIZER, 1, cfg))} if beta else {}
    # Whether a completion is beyond the paper's range would hang on the rounding of bfloat16.
    wide = {"epsilon": 0.2, "epsilon_high": 0.2} if "bfloat16" in (autocast, dtype) else {}
    row, config, _ = resolve(AlgorithmConfig(name=algorithm, beta=beta, aux_loss=aux_loss, **wide))
    optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(lr=1e-3), 10, 0, offload=offload)
    return PolicyLearner(
        policy, optimizer, PolicyObjective(row, config, 9), MicroBatches(budget), router_replay=replay, frozen=frozen
    )


def waits_of(case):
    """How often the host waits in an update: for the gradient's norm, for all metrics with the loss, in each pass for the
    tokens that have a gradient, and for moments that go to the host.
    """
    return (
        2 + ("offload" in case) + len(layout.micro_batches(batch_of(case.get("name", "qwen3")), case.get("budget", 10_000)))
    )


def step(device, watched=nullcontext, **case):
    """Two updates of one batch. Returns their metrics, the weights after them, and what `watched` notes of each."""
    learner, metrics, noted = learner_of(device, **case), [], []
    learner.prepare([batch_of(case.get("name", "qwen3"), case.get("layout", "padded"))], recompute=False)
    for _ in range(2):
        with watched() as seen:
            metrics.append(learner.update(0).metrics)
        noted.append(seen)
    return metrics, [p.detach().cpu() for p in learner.policy.parameters()], noted
