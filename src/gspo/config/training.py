"""Settings of the training loop, evaluation, the endpoint of `gspo serve`, logging, and the collapse guard."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.config.field import SEEDS, opt

LAYOUTS = ("auto", "padded", "shared")


@dataclass(frozen=True)
class TrainConfig:
    """The training loop."""

    steps: int = opt(100, low=1, high=10**9)
    """Number of rollout batches (`gspo sft`: of updates). `gspo serve`: only the length of `optimizer.schedule`; agents
    decide how many steps there are."""
    seed: int = opt(0, low=0, high=SEEDS)
    """Seed for sampling completions."""
    batch_size: int = opt(64, low=1, high=10**6)
    """`gspo sft`: rows per update."""
    micro_batch_tokens: int = opt(16384, low=1, high=10**9)
    """Maximum number of tokens, padding included, in one forward and backward pass (micro-batch). It changes memory use, not
    the gradient. If memory runs out, it is halved and the pass is retried; in one process, a resumed run starts with the
    full number again. With the layout `auto`, a batch in padded rows may have 15 % more."""
    layout: str = opt("auto", choices=LAYOUTS)
    """`padded`: one row per completion. `shared`: each prompt is computed once for all its completions, without padding.
    `auto`: the faster of the two for each batch, if the model supports both; on a GPU `padded`."""
    gradient_checkpointing: bool = opt(False)
    """Recompute activations in the backward pass: less memory, about a third more time."""
    offload_optimizer: bool = opt(False)
    """On a GPU: offload AdamW's moments (8 bytes per weight) to host memory between updates, up to twice that size there."""
    offload_reference: bool = opt(False)
    """On a GPU: offload the reference model of `algorithm.beta` and the teacher to host memory while they are not in use.
    With adapters (`lora.rank`) there is no reference model to offload."""
    save_every: int = opt(50, low=1, high=10**9)
    """Steps between checkpoints. The last step is always saved."""
    keep_checkpoints: int = opt(2, low=1, high=10**9)
    """Number of checkpoints to keep. Older ones are deleted, but for the last one before a collapse (`checkpoints/good`)."""
    keep_best: bool = opt(False)
    """Also keep the checkpoint of the best evaluation (highest `eval/reward`, where a completion that was not scored counts
    as 0, or as the worst if that is lower; the earliest of equals), which is saved after that evaluation. `checkpoints/best`
    holds its name. There is none if no evaluation was better than that before step 1."""
    max_skipped_updates: int = opt(3, low=0, high=10**9)
    """An update with a non-finite loss or gradient is skipped. More than this many in a row stop the run."""


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out prompts, during training and by `gspo eval`."""

    every: int = opt(0, low=0, high=10**9)
    """Steps between evaluations during training, with one before the first step and one after the last. 0: no evaluation."""
    num_prompts: int = opt(256, low=0, high=10**6)
    """Number of held-out prompts, of a source without held-out rows of its own at most a tenth of its rows. 0: none are held
    out, so nothing can be evaluated."""
    num_generations: int = opt(1, low=1, high=10_000)
    """Completions per prompt."""
    temperature: float | None = opt(None, low=0, high=100)
    """Sampling temperature: at least 0.01, or 0 for greedy decoding. Unset: `rollout.temperature`; 1 on a benchmark."""
    top_p: float = opt(1.0, low=1e-6, high=1)
    """Nucleus sampling."""
    top_k: int = opt(0, low=0, high=10**7)
    """Sample from the k most likely tokens; 0: from all."""
    max_completion_length: int | None = opt(None, low=1, high=10**7)
    """Longest completion, in tokens. Unset: as in [rollout], or in the stage with the highest limit."""


@dataclass(frozen=True)
class ServeConfig:
    """The endpoint of `gspo serve`, for agents that call the policy themselves."""

    name: str = opt("policy")
    """Name of the model in requests."""
    host: str = opt("127.0.0.1")
    """Address to listen on. `0.0.0.0`: all addresses of this machine, so that other machines can connect."""
    port: int = opt(0, low=0, high=65535)
    """Port to listen on. 0: any free one."""
    max_body: int = opt(16777216, low=1024, high=2**34)
    """Maximum size of a request, in bytes."""
    max_concurrent: int = opt(1024, low=1, high=10**6)
    """Maximum number of concurrent requests; more are refused. The limit on connections is 256 higher: raise the process's
    limit on open files (`ulimit -n`) above that."""
    timeout: float = opt(600.0, low=1e-3, high=1e6)
    """Seconds for a request to arrive, and then for the response of a chat completion. A training step has no limit."""
    max_age: int = opt(4, low=0, high=10**9)
    """Maximum age of a turn to train on, in weight versions. Older turns are left out and counted."""


TRACKERS = ("tensorboard", "wandb", "trackio")


@dataclass(frozen=True)
class LogConfig:
    """Output of a run: its folder, the trackers, the logged rollouts."""

    dir: str = opt("auto", path=True)
    """Run folder. If it holds a run, that run is resumed (`--resume`) or the folder is refused; only a run that ended before
    its first update and checkpoint is replaced. `auto`: a new one, `runs/run`, `runs/run-2`, `runs/run-3` and so on; with
    `--resume` the newest of these."""
    trackers: list[str] = opt([])
    """Any of `tensorboard`, `wandb`, `trackio`."""
    project: str = opt("gspo")
    """Project name for the trackers."""
    token_rollouts: int = opt(4, low=0, high=10**6)
    """Rollouts per step that are logged with the log-probability and log-ratio of each token."""
    rollouts: bool = opt(True)
    """Write every rollout to rollouts.jsonl."""


@dataclass(frozen=True)
class GuardConfig:
    """The collapse guard: early warnings, and the action taken if they last."""

    action: str = opt("warn", choices=("off", "warn", "stop", "rewind"))
    """Action on an alarm: `warn`, `stop` with a checkpoint, or `rewind` to the last good checkpoint with a lower learning
    rate. `off`: no guard."""
    patience: int = opt(3, low=1, high=10**6)
    """Number of consecutive steps that an alarm must last."""
    window: int = opt(5, low=1, high=10**6)
    """Length of the shortest reward average, in steps. Longer averages are tested as well."""
    collapse: float = opt(0.5, low=1e-6, high=1)
    """A reward below this share of its best counts as collapsed, unless noise explains it. See docs/stability.md for rewards
    that may be negative."""
    lr_factor: float = opt(0.5, low=1e-6, high=1)
    """Factor applied to the learning rate at each rewind."""
    max_rewinds: int = opt(2, low=0, high=10**6)
    """Maximum number of rewinds. After those, a collapse stops the run."""
