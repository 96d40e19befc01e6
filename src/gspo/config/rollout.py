"""Settings of the prompts, the sampler, and the rollout batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.config.field import COOLEST, SEEDS, opt

QUANTIZATIONS = ("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "int8_per_channel_weight_only")
"""vLLM's names for weights that it rounds as it loads them, so that it can load new ones."""


@dataclass(frozen=True)
class TaskConfig:
    """The prompts: where they come from, and how they are read."""

    source: str = opt("", path=True)
    """`reasoning_gym:NAME`, `verifiers:NAME`, `benchmark:NAME`, a .jsonl, .json, .parquet or .csv file, `module:function`, a
    folder written by `save_to_disk` of datasets, or a Hub id. Required."""
    config: dict[str, Any] = opt({})
    """Options of the source: of a reasoning-gym task or a benchmark, the arguments of a function, the `name` of a data set,
    or verifiers' `[env]`. An `eval_source` has them too if it is of the same kind (but no other benchmark), or if
    the source takes none."""
    split: str = opt("train")
    """Split to train on, of a Hugging Face data set or of a saved one with several splits."""
    size: int | None = opt(None, low=1, high=10**8)
    """Number of training prompts. Unset: all rows, or 2000 for a generated task."""
    seed: int = opt(0, low=0, high=SEEDS)
    """Seed of the items of a generated task, and of the order of the prompts."""
    eval_source: str | None = opt(None, path=True)
    """Source of the held-out prompts. Unset: a generated task generates its own, other sources hold out their last rows."""
    eval_split: str | None = opt(None)
    """Split to evaluate on, of a Hugging Face data set or a taskset of verifiers."""
    benchmarks: list[str] = opt([])
    """Decontamination: benchmarks that prompts must not come from, as `benchmark:NAME` or as files with their prompts (lines
    of a .txt, or rows). Training prompts of any source that share 8 consecutive words with one of them are left out. A
    benchmark that is the `eval_source` need not be named."""
    prompt_column: str = opt("prompt")
    """Column with the prompt, also of the held-out rows: a string or a list of chat messages."""
    completion_column: str = opt("completion")
    """Column with the completion to imitate (`gspo sft`)."""
    system: str = opt("auto")
    """System message before every prompt. `auto`: with a chat template and the reward `exact` or `task`, an instruction to
    answer between `<answer>` and `</answer>`; otherwise none. Empty: none."""
    too_long: str = opt("refuse", choices=("refuse", "leave_out"))
    """Handling of rows whose prompt leaves no room in the model's context for the longest completion: `refuse` the data, or
    `leave_out` these rows and report their number."""
    template: str = opt("auto", choices=("auto", "none"))
    """`auto`: the tokenizer's chat template, if it has one. `none`: the prompt as it is."""
    template_args: dict[str, Any] = opt({})
    """Arguments of the chat template, such as `enable_thinking = false`."""
    date: str | None = opt(None)
    """Day for a chat template that writes the date, as `2026-01-31`. Unset: the day on which the run began, also when it is
    resumed and in `gspo eval` of its model."""
    environment: str | None = opt(None)
    """`module:Class` of an environment that plays each prompt over several turns and computes the reward itself."""
    max_turns: int = opt(10, low=1, high=10_000)
    """Number of turns after which an episode is cut off."""
    step_timeout: float = opt(60.0, low=1e-3, high=86_400)
    """Seconds that an environment may take between two turns. A slower episode is left out of its group."""


@dataclass(frozen=True)
class SamplerConfig:
    """The engine that samples completions."""

    engine: str = opt("embedded")
    """`embedded`: the policy itself, in this process. `vllm`: a vLLM server that is started and stopped with the run.
    `module:function`: a function `f(config, model, **engine_args)` of yours that returns a `gspo.interfaces.Sampler`, or a
    pair, for training and for evaluation; or a context manager of either. Each new version of the weights is given to their
    `load`."""
    engines: int = opt(1, low=1, high=10_000)
    """Number of vLLM servers to start, on this machine or where Ray places them (`scale.launcher`). Several servers, and
    those placed by Ray, get GPUs of their own that the learner does not use."""
    urls: list[str] = opt([])
    """Addresses of running vLLM servers, such as `["http://127.0.0.1:8000"]`. Empty: servers are started."""
    python: str | None = opt(None, path=True)
    """Python interpreter of an environment with vLLM. Unset: this one."""
    engine_args: dict[str, Any] = opt({})
    """Extra arguments for a started server, such as `{gpu_memory_utilization = 0.4, enforce_eager = true}`, or for the
    function that `engine` names."""
    quantization: str = opt("none", choices=("none", *QUANTIZATIONS))
    """Precision of the weights in vLLM, by its own names. vLLM rounds them as it loads them, also at each update. `none`:
    that of the trainer's matrix products. `fp8_...`: matrices of attention, MLPs and experts in 8-bit floating point, and
    what they multiply. `int8_per_channel_weight_only`: experts alone. Not measured on a GPU."""
    kv_cache_dtype: str = opt("auto", choices=("auto", "fp8", "fp8_per_token_head", "int8_per_token_head"))
    """Precision of vLLM's keys and values, by its own names. `auto`: that of the model. `fp8`: with scales of 1. Not
    measured on a GPU."""
    speculative_config: dict[str, Any] = opt({})
    """vLLM's speculative decoding, such as `{method = "ngram", num_speculative_tokens = 4, prompt_lookup_max = 4}`. Exact in
    distribution whatever is proposed. A draft model is named by `model`; its weights stay as they are, which costs speed
    alone."""
    weight_check_limit: float | None = opt(None, low=1e-6, high=20)
    """Largest mean difference of log-probabilities, in nats per token, between vLLM and the trainer when new weights are
    checked. Unset: by the lowest precision in vLLM: float32 0.001, float16 0.03, bfloat16 0.15, int8 0.4, fp8 0.8. The last
    two are not measured on a GPU. Above what the precision gives, old weights can pass: a reload may leave out a layer."""
    weight_dir: str | None = opt(None, path=True)
    """Folder through which weights are handed to the engine, which must see it too; with broadcast weights, only the first
    ones. Unset: a folder in memory, in /dev/shm."""
    weight_transfer: str = opt("folder", choices=("auto", "folder", "broadcast"))
    """How new weights reach vLLM. `folder`: as files. `broadcast`: from the learner to the workers of each engine, over NCCL
    to other GPUs, or over gloo if one side is on a CPU. `auto`: `broadcast` to engines that the run starts on other GPUs,
    otherwise the folder. Adapters always use the folder. `broadcast` has not run on a GPU yet."""
    sleep_level: int = opt(0, low=0, high=2)
    """Memory that vLLM frees while the learner updates on the same GPU. 0: none. 1: its cache; its weights are offloaded to
    host memory. 2: its cache and its weights. Has not run on a GPU yet."""
    timeout: float = opt(600.0, low=1e-3, high=86_400)
    """Seconds without a new token after which an engine of vLLM counts as hung. With `gspo eval --url`: seconds for a
    reply."""
    start_timeout: float = opt(900.0, low=1.0, high=86_400)
    """Seconds until vLLM must answer after its start: it loads the weights, and may compile."""
    sync_timeout: float = opt(300.0, low=1.0, high=86_400)
    """Seconds for each step of a weight update in vLLM, such as reading all weights from a shared disk."""
    batch_size: int = opt(256, low=1, high=10**6)
    """Completions that each engine samples concurrently. A smaller number needs less memory."""


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
    """Sampling temperature. Log-probabilities are computed at this temperature too."""
    top_p: float = opt(1.0, low=1e-6, high=1)
    """Nucleus sampling. Must be 1 in training, because the ratio needs the full sampling distribution."""
    top_k: int = opt(0, low=0, high=10**7)
    """Sample from the k most likely tokens; 0: from all. Must be 0 in training, for the same reason."""
    stop: list[str] = opt([])
    """Stop strings: text, or one special token. The stop string stays part of the completion."""
    mask_truncated_completions: bool = opt(False)
    """Leave completions truncated at `max_completion_length` out of their group and of the update."""
    overlong_buffer: int = opt(0, low=0, high=10**7)
    """DAPO's soft overlong penalty: over the last so many tokens of `max_completion_length` the reward falls by up to 1, in
    proportion to the length. Evaluation is not penalised. 0: no penalty."""
    keep_special_tokens: bool = opt(False)
    """Whether rewards read all special tokens in a completion. Otherwise they read those that are not for ends, padding and
    roles, such as `</think>`."""
    dynamic_sampling_rounds: int = opt(0, low=0, high=1000)
    """Maximum rounds of extra prompts, sampled until `num_prompts` groups have rewards that differ. 0: none."""
    max_staleness: int = opt(0, low=0, high=1000)
    """With vLLM: maximum number of weight versions that sampling may run ahead. Above 0, the engine samples while the
    trainer updates, and episodes in environments continue across weight updates."""
