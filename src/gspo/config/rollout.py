"""Prompts, who samples completions to them, and how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import opt


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
    """Column with the completion to imitate (`gspo sft`)."""
    system: str | None = opt(None)
    """System message put before every prompt."""
    template: str = opt("auto", choices=("auto", "none"))
    """`auto`: the tokenizer's chat template if it has one. `none`: the prompt as it stands."""
    template_args: dict[str, Any] = opt({})
    """Arguments of the chat template, such as `enable_thinking = false`."""
    environment: str | None = opt(None)
    """`module:Class` of an environment that each prompt is played in, over several turns; it gives the reward itself."""
    max_turns: int = opt(10, low=1)
    """Turns of the policy after which an episode of an environment is cut off."""
    step_timeout: float = opt(60.0, above=0)
    """Seconds that an environment may take between two turns. An episode that takes longer is left out of its group."""


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
    """Seconds that the engine may take for a completion before it counts as hung."""
    batch_size: int = opt(256, low=1)
    """Completions sampled at once, in rows. Less takes less memory."""
    quantize: str = opt("none", choices=("none", "int8", "int4"))
    """Round the sampler's weights, to study how an algorithm bears a coarse engine. Takes a second copy of the model."""


@dataclass(frozen=True)
class RolloutConfig:
    """One rollout batch: the data of one step."""

    num_prompts: int = opt(32, low=1)
    """Prompts a step."""
    num_generations: int = opt(8, low=2)
    """Completions a prompt (G)."""
    max_completion_length: int = opt(256, low=1)
    """Longest completion, in tokens."""
    temperature: float = opt(1.0, above=0)
    """Sampling temperature; log-probabilities are taken at it."""
    top_p: float = opt(1.0, above=0, high=1)
    """Nucleus sampling. Only 1 in training: the ratio needs the distribution that was sampled."""
    top_k: int = opt(0, low=0)
    """Sample from the k likeliest tokens, 0 for all. Only 0 in training, as top_p."""
    stop: list[str] = opt([])
    """Strings that end a completion; they stay part of it."""
    mask_truncated_completions: bool = opt(False)
    """Leave completions that reached max_completion_length out of their group and out of the update."""
    refill: int = opt(0, low=0)
    """Rounds of further prompts that may be sampled until num_prompts groups have rewards that differ; 0: none."""
    max_staleness: int = opt(0, low=0)
    """Weight versions that sampling may run ahead of the trainer, with vLLM, which then works while the trainer does."""
    delay: int = opt(0, low=0)
    """Train on rollouts that are this many steps old, to study how an algorithm bears stale data."""
