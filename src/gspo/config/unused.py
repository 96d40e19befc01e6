"""Refuses options without effect: values that differ from the default although no code would read them.

Which options those are depends on the other options and on the command. Options that only the model can rule out, such as
those for experts with a dense model, are refused when the model is loaded.
"""

from __future__ import annotations

from functools import cache

from gspo.config.conflicts import Rule, value_of
from gspo.config.names import all_keys
from gspo.config.rewards import runs_programs
from gspo.config.schema import Config
from gspo.config.source_kind import has_splits, in_environment, kind
from gspo.config.values import shown


@cache
def keys_of(words: str) -> list[str]:
    """The keys that words name: `task.date`, all of a section with `task.*`, without one of these with `-task.date`."""
    keys: list[str] = []
    for word in words.split():
        if word.startswith("-"):
            keys.remove(word[1:])
        else:
            keys += [key for key in all_keys() if key.startswith(word[:-1])] if word.endswith("*") else [word]
    return keys


def kinds(config: Config, stages: bool = True) -> set[str]:
    """The kinds of the prompt sources; stages: also of those that come later, which read no task.config."""
    later = [*(stage.source for stage in config.stage), config.refresh.source] if stages else []
    return {kind(source) for source in (config.task.source, config.task.eval_source, *later) if source}


ENVIRONMENT = "it is for a task with an environment: set task.environment, or leave it out"
OFF = 'guard.action = "off": set another action, or leave it out'
NOT_EVALUATED = "eval.num_prompts = 0, so nothing is evaluated: set eval.num_prompts, or leave it out"

ALWAYS = (
    Rule("algorithm.clip_target", lambda c: c.algorithm.epsilon != "auto",
         'it is for algorithm.epsilon = "auto": set that too, or leave it out'),
    Rule("algorithm.kl_estimator", lambda c: not c.algorithm.beta,
         "there is no KL term with algorithm.beta = 0: set beta, or leave it out"),
    Rule("algorithm.kl_cov_weight", lambda c: not c.algorithm.kl_cov,
         "no token is penalised with algorithm.kl_cov = 0: set kl_cov, or leave it out"),
    Rule("teacher.* -teacher.path", lambda c: not c.teacher.path, "there is no teacher: set teacher.path, or leave it out"),
    Rule("teacher.revision teacher.dtype", lambda c: c.teacher.url is not None,
         "the server of teacher.url has loaded the teacher itself: leave it out"),
    Rule("teacher.key_variable teacher.timeout teacher.retries teacher.max_concurrent", lambda c: c.teacher.url is None,
         "it is for a server: set teacher.url, or leave it out"),
    Rule("algorithm.correction_ratio algorithm.correction_low algorithm.correction_high",
         lambda c: c.algorithm.correction == "none",
         'it is for algorithm.correction = "tis", "icepop" or "seq_mis": set that too, or leave it out'),
    Rule("lora.alpha lora.targets", lambda c: not c.lora.rank,
         "there are no adapters with lora.rank = 0: set the rank, or leave it out"),
    Rule("model.quantize", lambda c: not c.lora.rank,
         "weights of few bits stay as they are: train adapters on them (lora.rank), or leave it out"),
    Rule("optimizer.min_lr", lambda c: c.optimizer.schedule == "constant",
         'the learning rate does not fall with optimizer.schedule = "constant": choose "linear" or "cosine", '
         "or leave it out"),
    Rule("optimizer.schedule", lambda c: c.optimizer.min_lr == 1,
         "the learning rate does not fall with optimizer.min_lr = 1: lower that, or leave it out"),
    Rule("guard.patience guard.window guard.collapse", lambda c: c.guard.action == "off", OFF),
    Rule("guard.lr_factor guard.max_rewinds", lambda c: c.guard.action != "rewind",
         'it is for guard.action = "rewind": set that too, or leave it out'),
    Rule("guard.lr_factor", lambda c: not c.guard.max_rewinds,
         "guard.max_rewinds = 0, so the run never goes back: raise that, or leave it out"),
    Rule("task.split", lambda c: not kinds(c) & {"hub", "saved"}, "the source has no splits: leave it out"),
    Rule("task.eval_split", lambda c: not has_splits(c.task.eval_source or c.task.source),
         "the source has no splits to choose from: leave it out, and give held-out prompts of their own as "
         "task.eval_source"),
    Rule("task.config", lambda c: not kinds(c, stages=False) & {"hub", "function", "generated", "verifiers", "benchmark"},
         "the source takes no options: leave it out"),
    Rule("task.prompt_column", lambda c: not kinds(c) - {"generated", "verifiers", "benchmark"},
         "the source has its own name for the prompt: leave it out"),
    Rule("reward.answer_column", lambda c: kinds(c) == {"benchmark"},
         "the benchmark has its own name for the right answer: leave it out"),
    Rule("task.max_turns task.step_timeout", lambda c: not in_environment(c.task), ENVIRONMENT),
    Rule("task.system", lambda c: in_environment(c.task), "the environment has its own messages: leave it out"),
    Rule("eval.* -eval.num_prompts task.eval_source task.eval_split", lambda c: not c.eval.num_prompts, NOT_EVALUATED),
    Rule("reward.correct_threshold", lambda c: not c.eval.num_prompts and not c.refresh.drops, NOT_EVALUATED),
    Rule("refresh.* -refresh.every", lambda c: not c.refresh.every,
         "refresh.every = 0, so nothing is refreshed: set refresh.every, or leave it out"),
    Rule("refresh.drop_above refresh.drop_below refresh.min_seen refresh.return_after refresh.keep",
         lambda c: c.refresh.source is not None, "refresh.source replaces all queries, so none is dropped: leave it out"),
    Rule("eval.top_p eval.top_k", lambda c: c.eval.temperature == 0,
         "eval.temperature = 0 takes the most likely token: raise the temperature, or leave it out"),
    Rule("eval.num_generations", lambda c: c.eval.temperature == 0 and not in_environment(c.task),
         "with eval.temperature = 0 all completions of a prompt are equal: raise the temperature, or leave it out"),
    Rule("reward.env_passthrough",
         lambda c: in_environment(c.task) or all(":" not in name or runs_programs([name]) for name in c.reward.functions),
         "it is for a module:function: name one in reward.functions, or leave it out"),
    Rule("reward.timeout reward.workers reward.memory rollout.overlong_buffer rollout.keep_special_tokens",
         lambda c: in_environment(c.task),
         "the environment reads the completions and gives the reward itself: leave it out"),
    Rule("reward.workers reward.memory", lambda c: not set(c.reward.functions) - {"model", "judge"},
         "reward models and judges do not run in worker processes: leave it out"),
    Rule("reward.timeout", lambda c: all(runs_programs([name]) for name in c.reward.functions),
         "programs have limits of their own (of the reward code: code.cpu_seconds and code.total_cpu_seconds): leave it "
         "out"),
    Rule("code.* -code.sandbox", lambda c: "code" not in c.reward.functions,
         'add "code" to reward.functions, or leave it out'),
    Rule("reward_model.*", lambda c: "model" not in c.reward.functions,
         'add "model" to reward.functions, or leave it out'),
    Rule("judge.*", lambda c: "judge" not in c.reward.functions, 'add "judge" to reward.functions, or leave it out'),
    Rule("code.function_column", lambda c: c.code.language == "cpp",
         'functions are called in Python alone, and code.language = "cpp": leave it out'),
    Rule("code.sandbox", lambda c: not runs_programs(c.reward.functions),
         'no reward runs programs: add "code" to reward.functions, or leave it out'),
    Rule("judge.scale", lambda c: c.judge.mode in ("rank", "pairs"),
         'there are no scores with judge.mode = "rank" or "pairs": leave it out'),
    Rule("judge.seed", lambda c: c.judge.mode == "score",
         'completions are shown one by one with judge.mode = "score": leave it out'),
    Rule("sampler.* -sampler.engine -sampler.batch_size -sampler.engine_args", lambda c: c.sampler.engine != "vllm",
         'vLLM alone has a use for it: set sampler.engine = "vllm", or leave it out'),
    Rule("sampler.engine_args", lambda c: c.sampler.engine == "embedded",
         'the embedded sampler has no use for it: set sampler.engine = "vllm", or leave it out'),
    Rule("sampler.start_timeout sampler.quantization sampler.kv_cache_dtype sampler.speculative_config",
         lambda c: bool(c.sampler.urls), "servers that run already are not started: leave it out"),
    Rule("sampler.weight_dir", lambda c: c.sampler.weight_transfer == "broadcast" and bool(c.sampler.urls),
         'servers that run already get broadcast weights, set with sampler.weight_transfer = "broadcast": leave it out'),
    Rule("log.project", lambda c: not {"wandb", "trackio"} & set(c.log.trackers),
         "it is for wandb and trackio: name one in log.trackers, or leave it out"),
    Rule("log.token_rollouts", lambda c: not c.log.rollouts and bool(c.log.token_rollouts),
         "log.rollouts = false: no rollout is logged; set it to true, or token_rollouts to 0"),
)  # fmt: skip

TRAIN = (
    Rule("train.batch_size", lambda c: True,
         "it is for `gspo sft`: a step of `gspo train` has rollout.num_prompts x rollout.num_generations completions, and "
         "algorithm.mini_batches says how many updates they are split into; leave it out"),
    Rule("task.completion_column", lambda c: True, "it is for `gspo sft`: leave it out"),
    Rule("train.keep_best", lambda c: not c.eval.every, "nothing is evaluated during training: set eval.every"),
    Rule("train.keep_best", lambda c: bool(c.reward.weights) and not any(c.reward.weights),
         "every reward is 0 with these reward.weights, so none is best: leave it out"),
    Rule("serve.*", lambda c: True, "it is for `gspo serve`: leave it out"),
    Rule("algorithm.credit", lambda c: not in_environment(c.task),
         "completions have one turn without an environment: set task.environment, or leave it out"),
)  # fmt: skip
SFT = (
    Rule("reward.* reward_model.* judge.* sampler.* rollout.* guard.* serve.* refresh.* algorithm.* teacher.* "
         "eval.* -eval.num_prompts log.* -log.dir -log.trackers -log.project task.environment task.max_turns "
         "task.step_timeout train.offload_reference train.keep_best",
         lambda c: True,
         "`gspo sft` imitates rows and samples nothing: leave it out, or keep the settings of `gspo train` in another file"),
    Rule("train.seed", lambda c: not c.lora.rank,
         "`gspo sft` draws nothing without adapters; task.seed is the seed of the rows' order: leave it out"),
)  # fmt: skip
SERVE = (
    Rule("task.* -task.template -task.template_args -task.date eval.* -eval.every reward.* reward_model.* judge.* refresh.* "
         "rollout.num_prompts rollout.num_generations rollout.overlong_buffer rollout.keep_special_tokens train.batch_size "
         "train.keep_best",
         lambda c: True, "agents bring their own prompts and rewards to `gspo serve`: leave it out"),
    Rule("train.steps", lambda c: c.optimizer.schedule == "constant",
         'agents decide how many steps there are, and the learning rate does not fall with optimizer.schedule = "constant": '
         "leave it out"),
)  # fmt: skip
COMMANDS = {"train": ALWAYS + TRAIN, "sft": SFT + ALWAYS, "serve": SERVE + ALWAYS, "eval": ALWAYS}
"""`gspo eval` reads its part of a training run's file, so it refuses only settings of that part that no code would read."""
OF_TRAINING = keys_of(
    "optimizer.* algorithm.* teacher.* guard.* serve.* refresh.* log.* train.* -train.seed lora.* scale.* model.quantize "
    "eval.every rollout.num_prompts rollout.num_generations rollout.dynamic_sampling_rounds rollout.max_staleness "
    "rollout.top_p rollout.top_k rollout.mask_truncated_completions rollout.overlong_buffer"
)
"""Settings that `gspo eval` does not read. It refuses them on its command line."""


def check_unused(config: Config, command: str, filled: Config | None = None) -> None:
    """Refuses settings that `command` would not read. Raises ValueError with key, value and remedy. `filled`: the defaults
    with the algorithm's own, as `gspo config` writes them into any file. They count as not set.
    """
    if config.stage and command in ("sft", "serve"):
        raise ValueError(f"stage[0].at = {config.stage[0].at} has no effect: `gspo {command}` has no stages: leave it out")
    defaults = Config()
    for rule in COMMANDS[command]:
        for key in keys_of(rule.keys):
            value, *unset = (value_of(each, key) for each in (config, defaults, filled or defaults))
            if value not in unset and rule.when(config):
                raise ValueError(f"{key} = {shown(value)} has no effect: {rule.why}")
