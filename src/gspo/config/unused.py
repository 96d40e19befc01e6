"""Refuses options without effect: values that differ from the default although no code would read them.

Which options those are depends on the other options and on the command. Options that only the model can rule out, such as
those for experts with a dense model, are refused when the model is loaded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gspo.config import source_kind
from gspo.config.rewards import runs_programs
from gspo.config.schema import SECTIONS, Config
from gspo.config.values import shown


@dataclass(frozen=True)
class Unused:
    """Keys that have no effect if `when` holds, and the remedy."""

    keys: tuple[str, ...]
    when: Callable[[Config], bool]
    remedy: str


def every(section: str, *but: str) -> tuple[str, ...]:
    """All keys of a section, except `but`."""
    return tuple(f"{section}.{f.name}" for f in dataclasses.fields(SECTIONS[section]) if f.name not in but)


def in_environment(config: Config) -> bool:
    """Whether prompts are played in an environment."""
    return source_kind.in_environment(config.task)


def kinds(config: Config) -> set[str]:
    """The kinds of the prompt sources."""
    return {source_kind.kind(source) for source in (config.task.source, config.task.eval_source) if source}


ENVIRONMENT = "it is for a task with an environment: set task.environment, or leave it out"
OFF = 'guard.action = "off": set another action, or leave it out'
NOT_EVALUATED = "eval.num_prompts = 0, so nothing is evaluated: set eval.num_prompts, or leave it out"

ALWAYS = (
    Unused(
        ("algorithm.clip_target",), lambda c: c.algorithm.epsilon != "auto",
        'it is for algorithm.epsilon = "auto": set that too, or leave it out',
    ),
    Unused(
        ("algorithm.kl_estimator",), lambda c: not c.algorithm.beta,
        "there is no KL term with algorithm.beta = 0: set beta, or leave it out",
    ),
    Unused(every("teacher", "path"), lambda c: not c.teacher.path, "there is no teacher: set teacher.path, or leave it out"),
    Unused(
        ("algorithm.correction_ratio", "algorithm.correction_low", "algorithm.correction_high"),
        lambda c: c.algorithm.correction == "none",
        'it is for algorithm.correction = "tis", "icepop" or "seq_mis": set that too, or leave it out',
    ),
    Unused(
        ("lora.alpha", "lora.targets"), lambda c: not c.lora.rank,
        "there are no adapters with lora.rank = 0: set the rank, or leave it out",
    ),
    Unused(
        ("model.quantize",), lambda c: not c.lora.rank,
        "weights of few bits stay as they are: train adapters on them (lora.rank), or leave it out",
    ),
    Unused(
        ("optimizer.min_lr",), lambda c: c.optimizer.schedule == "constant",
        'the learning rate does not fall with optimizer.schedule = "constant": choose "linear" or "cosine", or leave it out',
    ),
    Unused(("guard.patience", "guard.window", "guard.collapse"), lambda c: c.guard.action == "off", OFF),
    Unused(
        ("guard.lr_factor", "guard.max_rewinds"), lambda c: c.guard.action != "rewind",
        'it is for guard.action = "rewind": set that too, or leave it out',
    ),
    Unused(
        ("guard.lr_factor",), lambda c: not c.guard.max_rewinds,
        "guard.max_rewinds = 0, so the run never goes back: raise that, or leave it out",
    ),
    Unused(("task.split",), lambda c: not kinds(c) & {"hub", "saved"}, "the source has no splits: leave it out"),
    Unused(
        ("task.eval_split",), lambda c: not source_kind.has_splits(c.task.eval_source or c.task.source),
        "the source has no splits to choose from: leave it out, and give held-out prompts of their own as task.eval_source",
    ),
    Unused(
        ("task.config",), lambda c: not kinds(c) & {"hub", "function", "generated", "verifiers", "benchmark"},
        "the source takes no options: leave it out",
    ),
    Unused(
        ("task.prompt_column",), lambda c: not kinds(c) - {"generated", "verifiers", "benchmark"},
        "the source has its own name for the prompt: leave it out",
    ),
    Unused(("task.max_turns", "task.step_timeout"), lambda c: not in_environment(c), ENVIRONMENT),
    Unused(("task.system",), in_environment, "the environment has its own messages: leave it out"),
    Unused(
        (*every("eval", "num_prompts"), "task.eval_source", "task.eval_split"),
        lambda c: not c.eval.num_prompts, NOT_EVALUATED,
    ),
    Unused(("reward.correct_threshold",), lambda c: not c.eval.num_prompts and not c.refresh.drops, NOT_EVALUATED),
    Unused(
        every("refresh", "every"), lambda c: not c.refresh.every,
        "refresh.every = 0, so nothing is refreshed: set refresh.every, or leave it out",
    ),
    Unused(
        ("refresh.drop_above", "refresh.drop_below", "refresh.min_seen", "refresh.return_after", "refresh.keep"),
        lambda c: c.refresh.source is not None,
        "refresh.source replaces all queries, so none is dropped: leave it out",
    ),
    Unused(
        ("eval.top_p", "eval.top_k"), lambda c: not c.eval.temperature,
        "eval.temperature = 0 takes the most likely token: raise the temperature, or leave it out",
    ),
    Unused(
        ("reward.env_passthrough",),
        lambda c: in_environment(c) or not any(":" in name and not runs_programs([name]) for name in c.reward.functions),
        "it is for a module:function: name one in reward.functions, or leave it out",
    ),
    Unused(
        ("reward.timeout", "reward.workers", "reward.memory", "rollout.overlong_buffer", "rollout.keep_special_tokens"),
        in_environment, "the environment reads the completions and gives the reward itself: leave it out",
    ),
    Unused(
        ("reward.workers", "reward.memory"), lambda c: not set(c.reward.functions) - {"model", "judge"},
        "reward models and judges do not run in worker processes: leave it out",
    ),
    Unused(
        ("reward.timeout",), lambda c: all(runs_programs([name]) for name in c.reward.functions),
        "programs have limits of their own (of the reward code: code.cpu_seconds and code.total_cpu_seconds): leave it out",
    ),
    Unused(
        every("code", "sandbox"), lambda c: "code" not in c.reward.functions,
        'add "code" to reward.functions, or leave it out',
    ),
    Unused(
        every("reward_model"), lambda c: "model" not in c.reward.functions,
        'add "model" to reward.functions, or leave it out',
    ),
    Unused(every("judge"), lambda c: "judge" not in c.reward.functions, 'add "judge" to reward.functions, or leave it out'),
    Unused(
        ("code.function_column",), lambda c: c.code.language == "cpp",
        'functions are called in Python alone, and code.language = "cpp": leave it out',
    ),
    Unused(
        ("code.sandbox",), lambda c: not runs_programs(c.reward.functions),
        'no reward runs programs: add "code" to reward.functions, or leave it out',
    ),
    Unused(
        ("judge.scale",), lambda c: c.judge.mode in ("rank", "pairs"),
        'there are no scores with judge.mode = "rank" or "pairs": leave it out',
    ),
    Unused(
        ("judge.seed",), lambda c: c.judge.mode == "score",
        'completions are shown one by one with judge.mode = "score": leave it out',
    ),
    Unused(
        every("sampler", "engine", "batch_size", "engine_args"),
        lambda c: c.sampler.engine != "vllm",
        'vLLM alone has a use for it: set sampler.engine = "vllm", or leave it out',
    ),
    Unused(
        ("sampler.engine_args",), lambda c: c.sampler.engine == "embedded",
        'the embedded sampler has no use for it: set sampler.engine = "vllm", or leave it out',
    ),
    Unused(
        ("sampler.start_timeout",), lambda c: bool(c.sampler.urls), "servers that run already are not started: leave it out",
    ),
    Unused(
        ("sampler.weight_dir",), lambda c: c.sampler.weight_transfer == "broadcast" and bool(c.sampler.urls),
        'servers that run already get broadcast weights, set with sampler.weight_transfer = "broadcast": leave it out',
    ),
    Unused(
        ("log.project",), lambda c: not {"wandb", "trackio"} & set(c.log.trackers),
        "it is for wandb and trackio: name one in log.trackers, or leave it out",
    ),
    Unused(
        ("log.token_rollouts",), lambda c: not c.log.rollouts and bool(c.log.token_rollouts),
        "log.rollouts = false: no rollout is logged; set it to true, or token_rollouts to 0",
    ),
)  # fmt: skip

TRAIN = (
    Unused(
        ("train.batch_size",), lambda c: True,
        "it is for `gspo sft`: a step of `gspo train` has rollout.num_prompts x rollout.num_generations completions, and "
        "algorithm.mini_batches says how many updates they are split into; leave it out",
    ),
    Unused(("task.completion_column",), lambda c: True, "it is for `gspo sft`: leave it out"),
    Unused(("train.keep_best",), lambda c: not c.eval.every, "nothing is evaluated during training: set eval.every"),
    Unused(
        ("train.keep_best",), lambda c: bool(c.reward.weights) and not any(c.reward.weights),
        "every reward is 0 with these reward.weights, so none is best: leave it out",
    ),
    Unused(every("serve"), lambda c: True, "it is for `gspo serve`: leave it out"),
    Unused(
        ("algorithm.credit",), lambda c: not in_environment(c),
        "completions have one turn without an environment: set task.environment, or leave it out",
    ),
)  # fmt: skip
SFT = (
    Unused(
        (
            *every("reward"), *every("reward_model"), *every("judge"), *every("sampler"), *every("rollout"), *every("guard"),
            *every("serve"), *every("refresh"),
            *every("algorithm"), *every("teacher"),
            *every("eval", "num_prompts"), *every("log", "dir", "trackers", "project"),
            "task.environment", "task.max_turns", "task.step_timeout",
            "train.offload_reference", "train.keep_best",
        ),
        lambda c: True,
        "`gspo sft` imitates rows and samples nothing: leave it out, or keep the settings of `gspo train` in another file",
    ),
    Unused(
        ("train.seed",), lambda c: not c.lora.rank,
        "`gspo sft` draws nothing without adapters; task.seed is the seed of the rows' order: leave it out",
    ),
)  # fmt: skip
SERVE = (
    Unused(
        (
            *every("task", "template", "template_args", "date"), *every("eval", "every"), *every("reward"),
            *every("reward_model"), *every("judge"), "rollout.num_prompts", "rollout.num_generations", *every("refresh"),
            "rollout.overlong_buffer", "rollout.keep_special_tokens", "train.batch_size",
            "train.keep_best",
        ),
        lambda c: True,
        "agents bring their own prompts and rewards to `gspo serve`: leave it out",
    ),
    Unused(
        ("train.steps",), lambda c: c.optimizer.schedule == "constant",
        'agents decide how many steps there are, and the learning rate does not fall with optimizer.schedule = "constant": '
        "leave it out",
    ),
)  # fmt: skip
COMMANDS = {"train": ALWAYS + TRAIN, "sft": SFT + ALWAYS, "serve": SERVE + ALWAYS, "eval": ALWAYS}
"""`gspo eval` reads its part of a training run's file, so it refuses only settings of that part that no code would read."""
OF_TRAINING = (
    *every("optimizer"), *every("algorithm"), *every("teacher"), *every("guard"), *every("serve"), *every("refresh"),
    *every("log"), *every("train", "seed"), *every("lora"), *every("scale"), "model.quantize", "eval.every",
    "rollout.num_prompts", "rollout.num_generations", "rollout.dynamic_sampling_rounds", "rollout.max_staleness",
    "rollout.temperature", "rollout.top_p", "rollout.top_k", "rollout.mask_truncated_completions",
    "rollout.overlong_buffer",
)  # fmt: skip
"""Settings that `gspo eval` does not read. It refuses them on its command line."""


def unused(config: Config, rules: Iterable[Unused], filled: Config | None = None) -> Iterable[tuple[str, str]]:
    """Yields each key that is set without effect, with an error message that contains the remedy.

    Args:
        filled: A configuration whose values count as not set, like the defaults.
    """
    for rule in rules:
        for key in rule.keys:
            section, name = key.split(".")
            value = getattr(getattr(config, section), name)
            unset = [getattr(SECTIONS[section](), name), *([getattr(getattr(filled, section), name)] if filled else [])]
            if value not in unset and rule.when(config):
                yield key, f"{key} = {shown(value)} has no effect: {rule.remedy}"


def check_unused(config: Config, command: str, filled: Config | None = None) -> None:
    """Refuses settings that `command` would not read. Raises ValueError with key, value and remedy.

    Args:
        command: "train", "sft", "serve" or "eval".
        filled: The defaults with the algorithm's own, as `gspo config` writes them into any file. They count as not set.
    """
    if config.stage and command in ("sft", "serve"):
        raise ValueError(f"stage[0].at = {config.stage[0].at} has no effect: `gspo {command}` has no stages: leave it out")
    for _, text in unused(config, COMMANDS[command], filled):
        raise ValueError(text)
