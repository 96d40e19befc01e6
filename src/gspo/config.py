"""The configuration: frozen dataclasses, one docstring a field with its unit. Imports nothing heavy.

configfile.py reads and writes it. An algorithm's own constants stay in its row (objective/algorithms.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from gspo.judging_config import JudgeConfig, RewardModelConfig
from gspo.loop_config import EvalConfig, GuardConfig, LogConfig, OptimizerConfig, ServeConfig, TrainConfig, opt

NAMED = ("task", "exact", "math", "model", "judge")
"""The rewards that `reward.functions` names, beside module:function."""


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
class TaskConfig:
    """The prompts, and what a right answer is."""

    source: str = opt("")
    """`reasoning_gym:NAME`, `verifiers:NAME`, a .jsonl, .parquet or .csv file, `module:function`, a Hub id. Required."""
    config: dict[str, Any] = opt({})
    """For the source: options of a reasoning-gym task, a function's arguments, a data set's `name`, verifiers' `[env]`."""
    split: str = opt("train")
    """Split of a Hugging Face data set to train on."""
    size: int | None = opt(None, low=1)
    """Number of training prompts; unset: all rows, or 2000 for a generated task."""
    seed: int = opt(0, low=0)
    """Seed of a generated task's items and of the order of the prompts."""
    eval_source: str | None = opt(None)
    """Source of the held-out prompts; unset: a generated task makes its own, other sources give up their last rows."""
    eval_split: str | None = opt(None)
    """Split of a Hugging Face data set, or of a taskset of verifiers, to evaluate on."""
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
    environment: str | None = opt(None)
    """`module:Class` of an environment that each prompt is played in, over several turns; it gives the reward itself."""
    max_turns: int = opt(10, low=1)
    """Answers of the policy after which an episode of an environment is cut off."""
    step_timeout: float = opt(60.0, above=0)
    """Seconds that an environment may take between two answers. An episode that takes longer is left out of its group."""


@dataclass(frozen=True)
class RewardConfig:
    """What a reply is worth."""

    functions: list[str] = opt(["task"])
    """Any of `task` (the source's own scorer), `exact`, `math`, `model` (see [reward_model]), `judge` (see [judge]), and
    `module:function`."""
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
    refill: int = opt(0, low=0)
    """Rounds of further prompts that may be sampled until num_prompts groups have rewards that differ; 0: none."""
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
class Config:
    """A whole run."""

    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
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
