"""Prompts, who samples completions to them, and how many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import COOLEST, SEEDS, opt


@dataclass(frozen=True)
class TaskConfig:
    """The prompts: where they come from, and how they are read."""

    source: str = opt("", path=True)
    """`reasoning_gym:NAME`, `verifiers:NAME`, `benchmark:NAME`, a .jsonl, .json, .parquet or .csv file,
    `module:function`, a folder that `save_to_disk` of datasets wrote, a Hub id. Required."""
    config: dict[str, Any] = opt({})
    """Options of the source: those of a reasoning-gym task or of a benchmark, a function's arguments, a data set's `name`,
    verifiers' `[env]`."""
    split: str = opt("train")
    """Split to train on, of a Hugging Face data set or of one that was saved with several."""
    size: int | None = opt(None, low=1, high=10**8)
    """Number of training prompts. Unset: all rows, or 2000 for a generated task."""
    seed: int = opt(0, low=0, high=SEEDS)
    """Seed of a generated task's items and of the order of the prompts."""
    eval_source: str | None = opt(None, path=True)
    """Source of the held-out prompts. Unset: a generated task makes its own, other sources give up their last rows."""
    eval_split: str | None = opt(None)
    """Split of a Hugging Face data set, or of a taskset of verifiers, to evaluate on."""
    benchmarks: list[str] = opt([])
    """Benchmarks that prompts must not come from: `benchmark:NAME`, or files with their prompts, lines of a .txt or rows.
    Training prompts that share 8 words in a row with one of them are left out, whatever source they come from. A benchmark
    that is the `eval_source` need not be named."""
    prompt_column: str = opt("prompt")
    """Column with the prompt: a string or a list of chat messages."""
    completion_column: str = opt("completion")
    """Column with the completion to imitate (`gspo sft`)."""
    system: str = opt("auto")
    """System message put before every prompt. `auto`: with a chat template and the reward `exact` or `task`, how to give the
    answer, between <answer> and </answer>; else none. Empty: none."""
    too_long: str = opt("refuse", choices=("refuse", "leave_out"))
    """What to do with rows whose prompt leaves no room for the longest completion in the model's context: `refuse` the data,
    or `leave_out` these rows and say how many there are."""
    template: str = opt("auto", choices=("auto", "none"))
    """`auto`: the tokenizer's chat template, if it has one. `none`: the prompt as it is."""
    template_args: dict[str, Any] = opt({})
    """Arguments of the chat template, such as `enable_thinking = false`."""
    environment: str | None = opt(None)
    """`module:Class` of an environment in which each prompt is played over several turns. It gives the reward itself."""
    max_turns: int = opt(10, low=1, high=10_000)
    """Number of turns after which an episode is cut off."""
    step_timeout: float = opt(60.0, low=1e-3, high=86_400)
    """Seconds that an environment may take between two turns. An episode that takes longer is left out of its group."""


@dataclass(frozen=True)
class SamplerConfig:
    """What samples the completions."""

    engine: str = opt("embedded", choices=("embedded", "vllm"))
    """`embedded`: the policy itself, in this process. `vllm`: a vLLM server that is started and stopped with the run."""
    engines: int = opt(1, low=1, high=10_000)
    """vLLM servers to start, on this machine or where Ray places them (`scale.launcher`). If there are several, or Ray
    places them, each gets GPUs of its own, which the learner does not use."""
    urls: list[str] = opt([])
    """Addresses of vLLM servers that already run, such as `["http://127.0.0.1:8000"]`. Empty: servers are started."""
    python: str | None = opt(None, path=True)
    """Python interpreter whose environment has vLLM. Unset: this one."""
    engine_args: dict[str, Any] = opt({})
    """Additional arguments of a started server, such as `{gpu_memory_utilization = 0.4, enforce_eager = true}`."""
    exchange: str | None = opt(None, path=True)
    """Folder through which weights reach the engine, which must see it too; when they are broadcast, the first ones. Unset:
    one in memory, /dev/shm."""
    weight_transfer: str = opt("folder", choices=("auto", "folder", "broadcast", "ipc"))
    """How new weights reach vLLM. `folder`: as files. `broadcast`: from the learner to the workers of each engine, on other
    GPUs (NCCL), or where one side is on a CPU (gloo). `ipc`: they stay on the GPU that learner and engine share, or in the
    memory of the machine if both are on its CPU. `auto`: the one of these that fits the GPUs of engines that the run starts,
    else the folder. Adapters take the folder. No GPU has run `broadcast` or `ipc` yet."""
    sleep_level: int = opt(0, low=0, high=2)
    """What vLLM gives back while the learner updates on the same GPU. 0: nothing. 1: its cache, and its weights wait in the
    host's memory. 2: its cache and its weights. No GPU has run it yet."""
    timeout: float = opt(600.0, low=1e-3, high=86_400)
    """Seconds that the engine may take for a completion before it counts as hung."""
    batch_size: int = opt(256, low=1, high=10**6)
    """Completions sampled at the same time, by each engine. A smaller number needs less memory."""
    quantize: str = opt("none", choices=("none", "bf16", "fp8", "int8", "int4"))
    """Round the sampler's weights, to study an algorithm with a coarse engine: it still computes in the model's precision.
    Needs a second copy of the model."""


@dataclass(frozen=True)
class RolloutConfig:
    """One rollout batch: the data of one step."""

    num_prompts: int = opt(32, low=1, high=10**6)
    """Prompts per step."""
    num_generations: int = opt(8, low=2, high=10_000)
    """Completions per prompt (G)."""
    max_completion_length: int = opt(256, low=1, high=10**7)
    """Longest completion, in tokens."""
    temperature: float = opt(1.0, low=COOLEST, high=100)
    """Sampling temperature. Log-probabilities are computed at it too."""
    top_p: float = opt(1.0, low=1e-6, high=1)
    """Nucleus sampling. Must be 1 in training, because the ratio needs the distribution that was sampled from."""
    top_k: int = opt(0, low=0, high=10**7)
    """Sample from the k most likely tokens; 0: from all. Must be 0 in training, for the same reason."""
    stop: list[str] = opt([])
    """Strings that end a completion: text, or one special token. They stay part of it."""
    mask_truncated_completions: bool = opt(False)
    """Leave completions that were cut off at max_completion_length out of their group and of the update."""
    refill: int = opt(0, low=0, high=1000)
    """Most rounds of further prompts, sampled until num_prompts groups have rewards that differ. 0: none."""
    max_staleness: int = opt(0, low=0, high=1000)
    """With vLLM: most weight versions by which sampling may run ahead. Above 0 the engine works while the trainer does, and
    episodes in environments go on across weight updates."""
    delay: int = opt(0, low=0, high=1000)
    """Train on rollouts that are this many steps old, to study an algorithm with stale data."""
