"""Settings of the model, its adapters, the algorithm and the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import opt
from gspo.objective.algorithms import ALGORITHMS


@dataclass(frozen=True)
class ModelConfig:
    """The policy: any causal language model from transformers."""

    path: str = opt("", path=True)
    """Folder or Hugging Face id of the model, or a GGUF file, which is converted once. Required."""
    revision: str | None = opt(None)
    """Branch, tag or commit on the Hugging Face Hub."""
    tokenizer: str | None = opt(None, path=True)
    """Folder or Hugging Face id of the tokenizer. Unset: the model's own."""
    device: str = opt("auto")
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = opt("float32", choices=("float32", "bfloat16"))
    """Data type of the weights. bfloat16 weights lose small updates: prefer float32 with autocast."""
    autocast: str = opt("auto", choices=("auto", "none", "bfloat16"))
    """Data type of matrix multiplications. `auto`: bfloat16 on a GPU, none on a CPU. The head is always float32."""
    attention: str = opt("sdpa", choices=("sdpa", "eager", "flash_attention_2", "flash_attention_3"))
    """Attention implementation in transformers."""
    expert_kernels: str = opt("auto", choices=("auto", "grouped_mm", "eager"))
    """Expert kernels of a mixture of experts. `auto`: grouped_mm if the model supports it; on a CPU or under autocast,
    gspo's own version of it."""
    quantize: str = opt("none", choices=("none", "nf4", "int8"))
    """Quantize the frozen weights under the adapters to 4 (`nf4`) or 8 bits (`int8`), with bitsandbytes in blocks of 64.
    Head, embeddings, routers and norms are not quantized. The model is loaded into host memory in `dtype` and quantized
    weight by weight."""
    trust_remote_code: bool = opt(False)
    """Run Python code that comes with the model. Only for models whose code you have read."""
    allow_pickle: bool = opt(False)
    """Accept weights in other formats than safetensors. Loading such a file can run code."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (LoRA), trained instead of all weights. Checkpoints then hold only the adapter, in PEFT's format."""

    rank: int = opt(0, low=0, high=8192)
    """Rank r of the adapters. 0: no adapters, all weights are trained."""
    alpha: float | None = opt(None, low=1e-3, high=1e6)
    """The output of the adapters is multiplied by alpha / r. Unset: alpha = 2 r."""
    targets: list[str] = opt(["all-linear"])
    """Layers that get an adapter. `all-linear`: every linear layer except the head, the routers, and layers that PEFT
    mistakes for experts in some model families (docs/lora.md names them). `experts`: the stacked expert weights of a mixture
    of experts. Other entries are layer names, such as `q_proj`."""


@dataclass(frozen=True)
class TeacherConfig:
    """The teacher of on-policy distillation: a frozen model that reads what the policy samples. Other settings: [model]."""

    path: str = opt("", path=True)
    """Folder or Hugging Face id of a language model with the policy's token ids and chat template; with `url`, the server's
    name for it. Empty: no teacher."""
    revision: str | None = opt(None)
    """Branch, tag or commit on the Hugging Face Hub."""
    dtype: str = opt("float32", choices=("float32", "bfloat16"))
    """Data type of the teacher's weights."""
    weight: float = opt(1.0, low=1e-6, high=1e6)
    """Weight of log pi_T - log pi_old, in nats, in the advantage of each sampled token. pi_T is the teacher's distribution
    at the sampling temperature."""
    url: str | None = opt(None)
    """Address of a vLLM server with the teacher, such as `http://127.0.0.1:8000/v1`, instead of loading it here."""
    key_variable: str = opt("")
    """Environment variable with the API key of this server. Empty: no key."""
    timeout: float = opt(600.0, low=1e-3, high=86_400)
    """Seconds that the server may take for one completion, retries included."""
    retries: int = opt(10, low=0, high=1000)
    """Retries of a failed request (429, 5xx, lost connection), with growing waits. Then the run ends."""
    max_concurrent: int = opt(16, low=1, high=4096)
    """Maximum number of concurrent requests to the server."""

    @property
    def local(self) -> bool:
        """Whether there is a teacher, loaded by the run itself."""
        return bool(self.path) and self.url is None


@dataclass(frozen=True)
class AlgorithmConfig:
    """The objective: a row of the table in objective/algorithms.py, and its settings."""

    name: str = opt("gspo", choices=ALGORITHMS)
    """The algorithm: a row of the table in docs/algorithm.md."""
    epsilon: float | str | None = opt(None, low=1e-9, high=1, choices=("auto",))
    """Lower clip range: a ratio below 1 - epsilon is clipped. Unset: the algorithm's own. `auto`: both ends adapt so that
    the clipped share of the tokens with an advantage stays near `clip_target`."""
    epsilon_high: float | None = opt(None, low=1e-9, high=1000)
    """Upper clip range: a ratio above 1 + epsilon_high is clipped. Unset: the algorithm's own."""
    epsilon_length: int | None = opt(None, low=1, high=10_000_000)
    """Length in tokens for which the clip range is meant. For others the logarithms of its ends are multiplied by
    sqrt(epsilon_length / length), as in FSPO. For ratios of whole completions or turns. Unset: one range for all lengths."""
    beta: float = opt(0.0, low=0, high=1000)
    """Weight of the KL divergence from the initial model in the loss. 0: no KL term, and no reference model in memory."""
    kl_estimator: str = opt("k3", choices=("k1", "k2", "k3"))
    """Estimator of that KL divergence. As a loss, k1 has zero gradient on average, so it does not restrain the policy."""
    entropy_bonus: float = opt(0.0, low=0, high=1000)
    """Weight of the policy's entropy at the sampled tokens, in nats, in the objective: it slows the fall of the entropy.
    Start with 1e-3."""
    top_entropy: float = opt(1.0, low=1e-3, high=1)
    """Share of the tokens that updates read through which the policy loss has a gradient: those where the entropy of pi_old
    is highest. Ratios, clips, means and other terms count every token. The paper's is 0.2 (arXiv 2506.01939). 1: all."""
    clip_cov: float = opt(0.0, low=0, high=1)
    """Clip-Cov: share of the tokens that updates read through which the policy loss has no gradient, drawn from those where
    the product of log pi_old and A, each minus its mean over the tokens, is 1 to 5. The paper's is 2e-4 (arXiv 2505.22617).
    0: none."""
    kl_cov: float = opt(0.0, low=0, high=1)
    """KL-Cov: share of the tokens of a batch whose KL divergence from pi_old is added to the loss: those where that product
    is highest. The paper's is 2e-3 (7B) and 2e-4 (32B). 0: none."""
    kl_cov_weight: float = opt(1.0, low=1e-6, high=1000)
    """Weight of the KL divergence of these tokens."""
    mini_batches: int | None = opt(None, low=1, high=100_000)
    """Number of mini-batches that a rollout batch is split into, with one update each. Unset: the algorithm's own."""
    epochs: int = opt(1, low=1, high=1000)
    """Passes over one rollout batch."""
    scale_rewards: str | None = opt(None, choices=("group", "batch", "none", "gdpo"))
    """Divisor of the advantage A: the standard deviation of the rewards in the `group`, in the `batch`, or `none`. `gdpo`:
    each of several rewards is scaled by its own in the group, then their weighted sum by its own in the batch. Unset: the
    algorithm's own."""
    credit: str = opt("completion", choices=("completion", "turn"))
    """Credit assignment: a reward counts for the whole `completion`, or for each `turn` of a conversation up to it."""
    discount: float = opt(1.0, low=1e-6, high=1)
    """With `credit = "turn"`: weight of the next turn's reward in the return of a turn."""
    old_logprobs: str = opt("auto", choices=("auto", "sampler", "recompute"))
    """Source of the log-probabilities of pi_old: the `sampler`, or one more forward pass of the trainer (`recompute`).
    `auto` decides on the first batch: recompute if numerical differences alone would clip more than 1 % of the tokens or,
    with a token-level clip range (`grpo`, `dapo`, `ppo`, ...), amount to a KL above 1e-5 nats per token."""
    clip_target: float = opt(0.15, low=1e-4, high=0.9)
    """With `epsilon = "auto"`: target share of clipped tokens, without gradient, among those with an advantage."""
    router_replay: str = opt("none", choices=("none", "R2", "R3"))
    """Routing Replay for a mixture of experts: updates use the experts chosen by the trainer's old policy (`R2`, one more
    forward pass per step) or by the sampler (`R3`)."""
    aux_loss: float = opt(0.0, low=0, high=1000)
    """Weight of the load-balancing loss of a mixture of experts, computed per completion."""
    correction: str = opt("none", choices=("none", "tis", "icepop", "seq_mis"))
    """Importance weights r = pi_old/mu that correct the mismatch between sampler and trainer: held within bounds (`tis`),
    or 0 outside of them (`icepop`, `seq_mis`). One per token or completion, as the algorithm's ratio; `seq_mis` has one per
    completion with any algorithm."""
    correction_ratio: str = opt("mean", choices=("mean", "product"))
    """r of a whole completion or turn: the geometric `mean` over its tokens, which does not drift with the length, or the
    `product`, its exact importance weight."""
    correction_low: float | None = opt(None, low=1e-6, high=0.999999)
    """Lower bound of r, a ratio: 1 is no mismatch. Unset: by correction and r, see docs/algorithm.md."""
    correction_high: float | None = opt(None, low=1.000001, high=1000)
    """Upper bound of r, a ratio. Unset: by correction and r, see docs/algorithm.md."""
    opsm: float | None = opt(None, low=1e-9, high=100)
    """Off-policy sequence masking: a completion with a negative advantage is left out of an update once log(mu/pi_theta),
    averaged over its tokens, exceeds this bound in nats per token. Unset: none is."""
    critic: str | None = opt(None, choices=("none", "shared", "copy"))
    """Input of PPO's value head: the policy's hidden states (`shared`) or a `copy` of its trunk. Unset: `shared` for ppo."""
    constants: dict[str, Any] = opt({})
    """Overrides of the algorithm's own constants, such as `{tau_neg = 1.1}` for sapo."""


@dataclass(frozen=True)
class ResolvedAlgorithm(AlgorithmConfig):
    """[algorithm] with the defaults of its row. `epsilon` is None if the row has no clip range."""

    mini_batches: int = opt(1, low=1, high=100_000)
    scale_rewards: str = opt("group", choices=("group", "batch", "none", "gdpo"))
    critic: str = opt("none", choices=("none", "shared", "copy"))


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule. All counts are in updates; a step has mini_batches x epochs of them."""

    name: str = opt("adamw", choices=("adamw", "adamw_8bit"))
    """`adamw_8bit`: moments take 2 bytes per weight instead of 8 (bitsandbytes, in blocks of 256; tensors of fewer than
    4,096 numbers keep 8)."""
    lr: float | str = opt("auto", low=1e-12, high=10, choices=("auto",))
    """Peak learning rate. `auto`: by the model's size, from 1e-5 (up to 135 million parameters) to 1e-6 (from 30 billion
    on), and ten times as much for adapters. The run says which."""
    beta1: float = opt(0.9, low=0, high=0.999999)
    """Decay rate of the running mean of the gradient."""
    beta2: float = opt(0.999, low=0, high=0.999999)
    """Decay rate of the running mean of the squared gradient."""
    eps: float = opt(1e-8, low=1e-20, high=1)
    """Added to the denominator."""
    weight_decay: float = opt(0.0, low=0, high=100)
    """Decoupled weight decay, applied to matrices only: norms and biases are left out."""
    warmup: int = opt(0, low=0, high=10**9)
    """Number of warm-up updates, over which the learning rate rises from 0."""
    schedule: str = opt("constant", choices=("constant", "linear", "cosine"))
    """Learning-rate schedule from the end of the warm-up to the last step. It counts updates: a run in which mini-batches
    without any group are left out ends above its last rate."""
    min_lr: float = opt(0.0, low=0, high=1)
    """Learning rate at the end of the schedule, as a fraction of `lr`."""
    max_grad_norm: float = opt(1.0, low=1e-6, high=1e12)
    """Gradient clipping: a gradient with a larger L2 norm is scaled down to this norm."""


@dataclass(frozen=True)
class ResolvedOptimizer(OptimizerConfig):
    """[optimizer] with a number as learning rate."""

    lr: float = opt(1e-6, low=1e-12, high=10)
