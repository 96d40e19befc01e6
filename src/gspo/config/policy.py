"""The model, its adapters, its optimizer, and the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import opt


@dataclass(frozen=True)
class ModelConfig:
    """The policy: any causal language model of transformers."""

    path: str = opt("")
    """Folder or Hugging Face id of the model. Required."""
    revision: str | None = opt(None)
    """Branch, tag or commit of a Hugging Face id."""
    tokenizer: str | None = opt(None)
    """Folder or id of the tokenizer; unset: the model's own."""
    device: str = opt("auto")
    """`auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = opt("float32", choices=("float32", "bfloat16"))
    """Type of the weights. Small updates vanish in bfloat16 weights: prefer float32 with autocast."""
    autocast: str = opt("auto", choices=("auto", "none", "bfloat16"))
    """Type of the matrix products: `auto` is bfloat16 on a GPU and none on a CPU. The head is always float32."""
    attention: str = opt("sdpa", choices=("sdpa", "eager", "flash_attention_2", "flash_attention_3"))
    """Attention implementation of transformers."""
    experts: str = opt("auto", choices=("auto", "grouped_mm", "eager"))
    """Expert kernels of a mixture of experts: `auto` is grouped_mm where the model has it, on a CPU gspo's version of it."""
    trust_remote_code: bool = opt(False)
    """Run Python code that comes with the model. Only for models whose code you have read."""
    allow_pickle: bool = opt(False)
    """Accept weights that are not safetensors. Loading such a file can run code."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA) in place of all weights. Checkpoints then hold the adapter alone, as PEFT writes it."""

    rank: int = opt(0, low=0)
    """Rank r of the adapters; 0: all weights are trained."""
    alpha: float | None = opt(None, above=0)
    """The adapters' output is multiplied by alpha / r; unset: 2 r."""
    targets: list[str] = opt(["all-linear"])
    """Names of the layers that get one, such as `q_proj`; `all-linear`: every linear layer but the head, not the experts."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The objective: a row of the table in objective/algorithms.py, and what may be set about it."""

    name: str = opt("gspo")
    """`gspo`, `gspo_token`, `gspo_turn`, `grpo`, `dr_grpo`, `dapo`, `luspo`, `gmpo`, `cispo`, `sapo`, `dppo_tv`, `dppo_kl`,
    `minirl` or `ppo`."""
    epsilon: float | str | None = opt(None, above=0, high=1, choices=("auto",))
    """Left clip range: a ratio below 1 - epsilon is clipped. Unset: the algorithm's own. `auto`: both ends set themselves
    so that the share of clipped tokens stays near clip_target."""
    epsilon_high: float | None = opt(None, above=0)
    """Right clip range: a ratio above 1 + epsilon_high is clipped. Unset: the algorithm's own."""
    beta: float = opt(0.0, low=0)
    """Weight of the KL divergence to the model that training began with; 0 needs no reference model."""
    kl_estimator: str = opt("k3", choices=("k1", "k2", "k3"))
    """Estimator of that divergence. As a loss, k1 has zero gradient on average: it does not hold the policy back."""
    mini_batches: int | None = opt(None, low=1)
    """Updates that one rollout batch is split into. Unset: the algorithm's own."""
    epochs: int = opt(1, low=1)
    """Passes over one rollout batch."""
    scale_rewards: str | None = opt(None, choices=("group", "batch", "none"))
    """What A is divided by: the standard deviation of its group's rewards, of the batch's, or nothing. Unset: the row's."""
    credit: str = opt("completion", choices=("completion", "turn"))
    """Whom a reward is credited to: the whole `completion`, or each `turn` of a conversation for what followed it."""
    discount: float = opt(1.0, above=0, high=1)
    """Weight of the next turn's reward in a turn's return, with credit = "turn"."""
    old_logprobs: str = opt("auto", choices=("auto", "sampler", "recompute"))
    """Where pi_old comes from: the `sampler`'s own likelihoods, or one more forward pass of the trainer (`recompute`).
    `auto` decides at the first batch: recompute where numerics alone would clip more than 1 % of the tokens."""
    clip_target: float = opt(0.15, above=0, high=0.9)
    """Share of the tokens that `epsilon = "auto"` lets the clip take the gradient from."""
    router_replay: str = opt("none", choices=("none", "R2", "R3"))
    """Routing Replay of a mixture of experts: updates use the experts that the trainer's old policy chose (`R2`, one more
    forward pass a step), or those that the sampler chose (`R3`)."""
    aux_loss: float = opt(0.0, low=0)
    """Weight of the load-balancing loss of a mixture of experts, taken over each completion."""
    correction: str = opt("none", choices=("none", "tis", "icepop", "seq_mis"))
    """Weights for the mismatch of sampler and trainer, pi_old/mu: capped (`tis`), or zero outside a range, by token
    (`icepop`) or by completion (`seq_mis`)."""
    critic: str | None = opt(None, choices=("none", "shared", "copy"))
    """Where PPO's value head stands: on the policy's hidden states, or on a copy of its trunk. Unset: shared for ppo."""
    constants: dict[str, Any] = opt({})
    """Changes of the row's own constants, such as `{tau_neg = 1.1}` of sapo."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule. All counts are updates, of which a step has mini_batches x epochs."""

    lr: float = opt(1e-6, above=0)
    """Learning rate at its highest."""
    beta1: float = opt(0.9, low=0, high=0.999999)
    """Decay of the gradient's mean."""
    beta2: float = opt(0.999, low=0, high=0.999999)
    """Decay of the squared gradient's mean."""
    eps: float = opt(1e-8, above=0)
    """Added to the denominator."""
    weight_decay: float = opt(0.0, low=0)
    """Decoupled weight decay."""
    warmup: int = opt(0, low=0)
    """Updates over which the learning rate rises from 0."""
    schedule: str = opt("constant", choices=("constant", "linear", "cosine"))
    """How it falls after the warm-up, until the last step."""
    min_lr: float = opt(0.0, low=0, high=1)
    """Where it falls to, as a share of lr."""
    max_grad_norm: float = opt(1.0, above=0)
    """Gradients longer than this are scaled down to it."""
