"""The configuration: frozen dataclasses, one docstring a field with its unit. Imports nothing heavy.

configfile.py reads and writes it. An algorithm's own constants stay in its row (objective/algorithms.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


def opt(
    default: Any,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field with its allowed range: `low` and `high` are allowed themselves, `above` is not."""
    limits = {"low": low, "above": above, "high": high, "choices": choices}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: type(default)(default), metadata=limits)
    return field(default=default, metadata=limits)


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
    """Expert kernels of a mixture of experts: `auto` is grouped_mm where the model has it."""
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
class TaskConfig:
    """The prompts, and what a right answer is."""

    source: str = opt("")
    """`reasoning_gym:NAME`, a .jsonl, .parquet or .csv file, `module:function`, or a Hugging Face data set id. Required."""
    config: dict[str, Any] = opt({})
    """Passed on to the source: a reasoning-gym task's own options, a function's arguments, a data set's `name`."""
    split: str = opt("train")
    """Split of a Hugging Face data set to train on."""
    size: int | None = opt(None, low=1)
    """Number of training prompts; unset: all rows, or 2000 for a generated task."""
    seed: int = opt(0, low=0)
    """Seed of a generated task's items and of the order of the prompts."""
    eval_source: str | None = opt(None)
    """Source of the held-out prompts; unset: a generated task makes its own, other sources give up their last rows."""
    eval_split: str | None = opt(None)
    """Split of a Hugging Face data set to evaluate on."""
    prompt_column: str = opt("prompt")
    """Column with the prompt: a string or a list of chat messages."""
    completion_column: str = opt("completion")
    """Column with the reply to imitate (`gspo sft`)."""
    system: str | None = opt(None)
    """System message put before every prompt."""
    template: str = opt("auto", choices=("auto", "none"))
    """`auto`: the tokenizer's chat template if it has one. `none`: the prompt as it stands."""
    template_args: dict[str, Any] = opt({})
    """Arguments of the chat template, such as `enable_thinking = false`."""


@dataclass(frozen=True)
class RewardConfig:
    """What a reply is worth."""

    functions: list[str] = opt(["task"])
    """Any of `task` (the source's own scorer), `exact`, `math`, and `module:function`."""
    weights: list[float] = opt([])
    """One weight a function; empty: all 1."""
    answer_column: str = opt("answer")
    """Column with the right answer, for `exact` and `math`."""
    timeout: float = opt(10.0, above=0)
    """Seconds that one call of a reward may take. A reply whose reward hangs is left out of its group."""
    workers: int = opt(1, low=1, high=256)
    """Processes that score replies."""
    correct_at: float = opt(1.0)
    """A reply counts as correct in `eval/accuracy` when the first of `functions` gives it at least this."""


@dataclass(frozen=True)
class SamplerConfig:
    """Who samples."""

    engine: str = opt("embedded", choices=("embedded", "vllm"))
    """`embedded`: the policy itself, in this process. `vllm`: a vLLM server, started and stopped with the run."""
    in_process: bool = opt(False)
    """vLLM without a server, in this process: it must be installed in this environment."""
    url: str | None = opt(None)
    """A vLLM server that already runs, such as `http://127.0.0.1:8000`; unset: one is started."""
    python: str | None = opt(None)
    """Interpreter whose environment has vLLM; unset: this one's."""
    engine_args: dict[str, Any] = opt({})
    """Further arguments of a started server, such as `{gpu_memory_utilization = 0.4, enforce_eager = true}`."""
    exchange: str | None = opt(None)
    """Folder through which new weights reach the engine, which must see it too; unset: one in memory, /dev/shm."""
    timeout: float = opt(600.0, above=0)
    """Seconds that the engine may take for a reply before it counts as hung."""
    batch_size: int = opt(256, low=1)
    """Replies sampled at once, in rows. Less takes less memory."""
    quantize: str = opt("none", choices=("none", "int8", "int4"))
    """Round the sampler's weights, to study how an algorithm bears a coarse engine. Takes a second copy of the model."""


@dataclass(frozen=True)
class RolloutConfig:
    """One rollout batch: the data of one step."""

    num_prompts: int = opt(32, low=1)
    """Prompts a step."""
    num_generations: int = opt(8, low=2)
    """Replies a prompt (G)."""
    max_completion_length: int = opt(256, low=1)
    """Longest reply, in tokens."""
    temperature: float = opt(1.0, above=0)
    """Sampling temperature; log-probabilities are taken at it."""
    top_p: float = opt(1.0, above=0, high=1)
    """Nucleus sampling. Only 1 in training: the ratio needs the distribution that was sampled."""
    top_k: int = opt(0, low=0)
    """Sample from the k likeliest tokens, 0 for all. Only 0 in training, as top_p."""
    stop: list[str] = opt([])
    """Strings that end a reply; they stay part of it."""
    mask_truncated_completions: bool = opt(False)
    """Leave replies that reached max_completion_length out of their group and out of the update."""
    max_staleness: int = opt(0, low=0)
    """Weight versions that sampling may run ahead of the trainer, with vLLM, which then works while the trainer does."""
    delay: int = opt(0, low=0)
    """Train on rollouts that are this many steps old, to study how an algorithm bears stale data."""


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
    credit: str = opt("reply", choices=("reply", "turn"))
    """Whom a reward is credited to: the whole `reply`, or each `turn` of a conversation for what followed it."""
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
    """Weight of the load-balancing loss of a mixture of experts, taken over each reply."""
    correction: str = opt("none", choices=("none", "tis", "icepop", "seq_mis"))
    """Weights for the mismatch of sampler and trainer, pi_old/mu: capped (`tis`), or zero outside a range, by token
    (`icepop`) or by reply (`seq_mis`)."""
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


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    steps: int = opt(100, low=1)
    """Rollout batches (`gspo sft`: updates)."""
    seed: int = opt(0, low=0)
    """Seed of the sampled replies."""
    batch_size: int = opt(64, low=1)
    """`gspo sft`: rows an update."""
    micro_batch_tokens: int = opt(16384, low=1)
    """Most tokens, padding included, in one forward and backward pass. Changes memory, not gradients."""
    layout: str = opt("padded", choices=("padded", "packed"))
    """`padded`: a row a reply. `packed`: one row with shared prompts, for prompts several times longer than the replies."""
    gradient_checkpointing: bool = opt(False)
    """Recompute activations in the backward pass: less memory, about a third more time."""
    save_every: int = opt(50, low=1)
    """Steps between checkpoints; the last step is always saved."""
    keep_checkpoints: int = opt(2, low=1)
    """Checkpoints kept; older ones are deleted."""
    max_bad_updates: int = opt(3, low=0)
    """Updates with a non-finite loss or gradient are skipped; more than this many in a row stop the run."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out prompts, in training and by `gspo eval`."""

    every: int = opt(0, low=0)
    """Steps between evaluations in training; 0: none. Otherwise also before the first step and after the last."""
    num_prompts: int = opt(256, low=1)
    """Held-out prompts."""
    num_generations: int = opt(1, low=1)
    """Replies a prompt."""
    temperature: float = opt(1.0, low=0)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = opt(1.0, above=0, high=1)
    """Nucleus sampling."""
    top_k: int = opt(0, low=0)
    """Sample from the k likeliest tokens, 0 for all."""
    max_completion_length: int | None = opt(None, low=1)
    """Longest reply, in tokens; unset: as in [rollout]."""


@dataclass(frozen=True)
class ServeConfig:
    """The endpoint of `gspo serve`, for agents that ask the policy themselves."""

    name: str = opt("policy")
    """Name of the model in requests."""
    host: str = opt("127.0.0.1")
    """Address to listen at."""
    port: int = opt(0, low=0, high=65535)
    """Port to listen at; 0: any free one."""
    max_body: int = opt(16777216, low=1024)
    """Bytes that a request may have."""
    max_concurrent: int = opt(1024, low=1)
    """Requests at once; more are refused."""
    timeout: float = opt(600.0, above=0)
    """Seconds that an answer may take."""
    max_age: int = opt(4, low=0)
    """Weight versions that an answer may be old when it is trained on; older ones are left out and counted."""


@dataclass(frozen=True)
class LogConfig:
    """What a run leaves behind."""

    dir: str = opt("runs/run")
    """Run folder. One that exists is resumed (`--resume`) or refused, never overwritten."""
    trackers: list[str] = opt([])
    """Any of `tensorboard`, `wandb`, `trackio`."""
    project: str = opt("gspo")
    """Project name for the trackers."""
    token_rollouts: int = opt(4, low=0)
    """Rollouts a step that are logged with each token's log-probability and log-ratio."""
    rollouts: bool = opt(True)
    """Write every rollout to rollouts.jsonl."""


@dataclass(frozen=True)
class GuardConfig:
    """The collapse guard: early warnings, and what to do when they hold."""

    action: str = opt("warn", choices=("off", "warn", "stop", "rewind"))
    """On an alarm `warn`, `stop` with a checkpoint, or `rewind` to the last good one with a lower rate; `off`: no watch."""
    patience: int = opt(3, low=1)
    """Steps in a row that an alarm must hold."""
    window: int = opt(10, low=1)
    """Steps over which the reward is averaged."""
    collapse: float = opt(0.5, above=0, high=1)
    """A reward below this share of its running best counts as collapsed."""
    lr_factor: float = opt(0.5, above=0, high=1)
    """What the learning rate is multiplied by at each rewind."""
    max_rewinds: int = opt(2, low=0)
    """Rewinds before the run stops."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    log: LogConfig = field(default_factory=LogConfig)


SECTIONS: dict[str, type] = {f.name: f.default_factory for f in dataclasses.fields(Config)}  # type: ignore[misc]
