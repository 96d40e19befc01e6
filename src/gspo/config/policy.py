"""The model, its adapters, its optimizer, and the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import opt
from gspo.objective.algorithms import ALGORITHMS


@dataclass(frozen=True)
class ModelConfig:
    """The policy: any causal language model of transformers."""

    path: str = opt("", path=True)
    """Folder or Hugging Face id of the model. Required."""
    revision: str | None = opt(None)
    """Branch, tag or commit of a Hugging Face id."""
    tokenizer: str | None = opt(None, path=True)
    """Folder or Hugging Face id of the tokenizer. Unset: the model's own."""
    device: str = opt("auto")
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = opt("float32", choices=("float32", "bfloat16"))
    """Data type of the weights. Small updates are lost in bfloat16 weights: prefer float32 with autocast."""
    autocast: str = opt("auto", choices=("auto", "none", "bfloat16"))
    """Data type of the matrix products. `auto`: bfloat16 on a GPU, none on a CPU. The head is always float32."""
    attention: str = opt("sdpa", choices=("sdpa", "eager", "flash_attention_2", "flash_attention_3"))
    """Attention implementation of transformers."""
    experts: str = opt("auto", choices=("auto", "grouped_mm", "eager"))
    """Expert kernels of a mixture of experts. `auto`: grouped_mm if the model has it; on a CPU and under
    autocast gspo's version of it."""
    kernels: str = opt("auto", choices=("auto", "torch"))
    """Small operations (norms, rotary embeddings, gates, experts' sums, attention at decoding) on a CPU in float32. `auto`:
    by kernels that the machine's C++ compiler builds in seconds, once; without one as `torch`, transformers' own."""
    quantize: str = opt("none", choices=("none", "nf4", "int8"))
    """Keep the weights below adapters in 4 (`nf4`) or 8 bits (bitsandbytes, blocks of 64). Head, embeddings, routers and
    norms stay as they are. The model is read into the host's memory, as dtype, and packed weight by weight."""
    trust_remote_code: bool = opt(False)
    """Run Python code that comes with the model. Only for models whose code you have read."""
    allow_pickle: bool = opt(False)
    """Accept weights that are not safetensors. Loading such a file can run code."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA) in place of all weights. Checkpoints then hold the adapter alone, as PEFT writes it."""

    rank: int = opt(0, low=0, high=8192)
    """Rank r of the adapters. 0: no adapters, all weights are trained."""
    alpha: float | None = opt(None, low=1e-3, high=1e6)
    """The output of the adapters is multiplied by alpha / r. Unset: alpha = 2 r."""
    targets: list[str] = opt(["all-linear"])
    """What gets an adapter. `all-linear`: every linear layer except head and routers (docs/lora.md names families in which
    PEFT takes some for experts: they are left out too). `experts`: the stacked weights of a
    mixture's experts. Others are names of layers, such as `q_proj`."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """The objective: a row of the table in objective/algorithms.py, and its settings."""

    name: str = opt("gspo", choices=ALGORITHMS)
    """The algorithm: a row of the table in docs/algorithm.md."""
    epsilon: float | str | None = opt(None, low=1e-9, high=1, choices=("auto",))
    """Lower clip range: a ratio below 1 - epsilon is clipped. Unset: the algorithm's own. `auto`: both ends are adjusted so
    that the share of clipped tokens among those with an advantage stays near clip_target."""
    epsilon_high: float | None = opt(None, low=1e-9, high=1000)
    """Upper clip range: a ratio above 1 + epsilon_high is clipped. Unset: the algorithm's own."""
    beta: float = opt(0.0, low=0, high=1000)
    """Weight of the KL divergence to the model that training started from. 0: none, and no reference model in memory."""
    kl_estimator: str = opt("k3", choices=("k1", "k2", "k3"))
    """Estimator of this divergence. As a loss, k1 has zero gradient on average, so it does not restrain the policy."""
    mini_batches: int | None = opt(None, low=1, high=100_000)
    """Updates that one rollout batch is split into. Unset: the algorithm's own."""
    epochs: int = opt(1, low=1, high=1000)
    """Passes over one rollout batch."""
    scale_rewards: str | None = opt(None, choices=("group", "batch", "none"))
    """What A is divided by: the standard deviation of the group's rewards, the batch's, or nothing. Unset: the algorithm's
    own."""
    credit: str = opt("completion", choices=("completion", "turn"))
    """What a reward is credited to: the whole `completion`, or each `turn` of a conversation for what came after it."""
    discount: float = opt(1.0, low=1e-6, high=1)
    """With credit = "turn": weight of the next turn's reward in the return of a turn."""
    old_logprobs: str = opt("auto", choices=("auto", "sampler", "recompute"))
    """Where pi_old comes from: the `sampler`'s own log-probabilities, or one more forward pass of the trainer (`recompute`).
    `auto` decides at the first batch: recompute if numerical differences alone would clip more than 1 % of the tokens, or,
    with a clip range for single tokens (`grpo`, `dapo`, `ppo`, ...), amount to a KL above 1e-5 nats a token."""
    clip_target: float = opt(0.15, low=1e-4, high=0.9)
    """With `epsilon = "auto"`: share of the tokens with an advantage that are clipped, that is, lose their
    gradient."""
    router_replay: str = opt("none", choices=("none", "R2", "R3"))
    """Routing Replay for a mixture of experts: updates use the experts that the trainer's old policy chose (`R2`, one more
    forward pass per step), or those that the sampler chose (`R3`)."""
    aux_loss: float = opt(0.0, low=0, high=1000)
    """Weight of the load-balancing loss of a mixture of experts, computed over each completion."""
    correction: str = opt("none", choices=("none", "tis", "icepop", "seq_mis"))
    """Weights that correct the mismatch of sampler and trainer, pi_old/mu: capped (`tis`), or 0 outside a range, per token
    (`icepop`) or per completion (`seq_mis`)."""
    critic: str | None = opt(None, choices=("none", "shared", "copy"))
    """Where PPO's value head reads: the policy's hidden states (`shared`), or a `copy` of its trunk. Unset: shared for
    ppo."""
    constants: dict[str, Any] = opt({})
    """Changes to the algorithm's own constants, such as `{tau_neg = 1.1}` for sapo."""


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its schedule. All counts are in updates; a step has mini_batches x epochs of them."""

    name: str = opt("adamw", choices=("adamw", "adamw_8bit"))
    """`adamw_8bit`: its moments take 2 bytes a weight, not 8 (bitsandbytes, in blocks of 256; weights of fewer than 4,096
    numbers keep 8)."""
    lr: float = opt(1e-6, low=1e-12, high=10)
    """Peak learning rate."""
    beta1: float = opt(0.9, low=0, high=0.999999)
    """Decay of the running mean of the gradient."""
    beta2: float = opt(0.999, low=0, high=0.999999)
    """Decay of the running mean of the squared gradient."""
    eps: float = opt(1e-8, low=1e-20, high=1)
    """Added to the denominator."""
    weight_decay: float = opt(0.0, low=0, high=100)
    """Decoupled weight decay, of matrices alone: norms and biases are left out."""
    warmup: int = opt(0, low=0, high=10**9)
    """Updates over which the learning rate rises from 0."""
    schedule: str = opt("constant", choices=("constant", "linear", "cosine"))
    """How the learning rate falls after the warm-up, until the last step."""
    min_lr: float = opt(0.0, low=0, high=1)
    """The learning rate at the end of the schedule, as a share of lr."""
    max_grad_norm: float = opt(1.0, low=1e-6, high=1e12)
    """A gradient with a larger L2 norm is scaled down to this norm."""
