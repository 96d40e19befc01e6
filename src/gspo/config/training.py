"""The configuration of the loop and of what is around it: steps, evaluation, endpoint, log, guard."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.config.field import opt

LAYOUTS = ("auto", "padded", "packed", "shared")


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    steps: int = opt(100, low=1)
    """Rollout batches (`gspo sft`: updates)."""
    seed: int = opt(0, low=0)
    """Seed of the sampled completions."""
    batch_size: int = opt(64, low=1)
    """`gspo sft`: rows an update."""
    micro_batch_tokens: int = opt(16384, low=1)
    """Most tokens, padding included, in one forward and backward pass. Changes memory, not gradients. Halved, and the pass
    made again, whenever memory does not suffice; a resumed run begins with this number again. Under `auto` a batch that is
    read in padded rows may have 15 % more."""
    layout: str = opt("auto", choices=LAYOUTS)
    """`padded`: a row a completion. `shared`: a prompt is computed once for all its completions, and nothing is padded.
    `packed`: the same under one dense mask. `auto`: the faster of the first two, batch by batch, where the model can be read
    in both; on a GPU `padded`."""
    gradient_checkpointing: bool = opt(False)
    """Recompute activations in the backward pass: less memory, about a third more time."""
    offload_optimizer: bool = opt(False)
    """On a GPU: AdamW's moments, 8 bytes a weight, wait in the host's memory between updates, where they take up to twice
    that."""
    offload_reference: bool = opt(False)
    """On a GPU: the reference model of `algorithm.beta` waits in the host's memory while it is not asked. With adapters
    (`lora.rank`) there is none to move."""
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
    """Completions a prompt."""
    temperature: float = opt(1.0, low=0)
    """Sampling temperature; 0 takes the likeliest token."""
    top_p: float = opt(1.0, above=0, high=1)
    """Nucleus sampling."""
    top_k: int = opt(0, low=0)
    """Sample from the k likeliest tokens, 0 for all."""
    max_completion_length: int | None = opt(None, low=1)
    """Longest completion, in tokens; unset: as in [rollout]."""


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
