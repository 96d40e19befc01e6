"""Settings that exclude each other: a table of which, when, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gspo.config.engines import AROUND, DIRECT, EXACT, INEXACT, NO_WEIGHTS, OURS, devices_each, underscored, vllm_arguments
from gspo.config.schema import Config
from gspo.config.source_kind import GIVEN, VERIFIERS, in_environment, kind
from gspo.config.values import shown
from gspo.objective.algorithms import ALGORITHMS


@dataclass(frozen=True)
class Rule:
    """Keys, one a word, that exclude each other or have no effect (unused.py) if `when` holds; why, and a remedy."""

    keys: str
    when: Callable[[Config], bool]
    why: str


def check_conflicts(config: Config, rows: Iterable[Rule]) -> None:
    """Raises ValueError, with the keys, their values and the remedy, for the first conflict."""
    for row in rows:
        if row.when(config):
            values = (f"{key} = {shown(value_of(config, key), key)}" for key in row.keys.split())
            raise ValueError(f"{' and '.join(values)}: {row.why}")


def value_of(config: Config, key: str) -> object:
    """The value of `section.name`."""
    section, name = key.split(".")
    return getattr(getattr(config, section), name)


def around_settings(config: Config) -> bool:
    """Whether vLLM's arguments name what a setting is for, or a short form of it (`spec_method`, ...)."""
    return any(name in AROUND or name.startswith("spec_") for name in vllm_arguments(config.sampler))


def reports_experts(config: Config) -> bool:
    """Whether vLLM is to report the experts that its routers chose."""
    asked = underscored(config.sampler.engine_args).get("enable_return_routed_experts")
    return config.algorithm.router_replay == "R3" or bool(asked)


def needs_draft(config: Config) -> bool:
    """Whether speculative decoding needs weights that nobody has named."""
    given = config.sampler.speculative_config
    return bool(given) and given.get("method") not in NO_WEIGHTS and "model" not in given


def compares_one(config: Config) -> bool:
    """Whether a judge that compares completions would be shown a single one by an evaluation."""
    judged = config.reward.functions[:1] == ["judge"] and config.judge.mode != "score"
    return judged and config.eval.every > 0 and config.eval.num_generations < 2


def is_own_teacher(config: Config) -> bool:
    """Whether the teacher is the model that training begins with."""
    model, teacher = config.model, config.teacher
    same = os.path.realpath(teacher.path) == os.path.realpath(model.path) and teacher.revision == model.revision
    return teacher.local and same


def temperatures(config: Config) -> list[float]:
    """Those of sampling for training, in all stages."""
    return [config.rollout.temperature, *(stage.temperature for stage in config.stage if stage.temperature is not None)]


def shortest(config: Config) -> int:
    """The smallest limit of completions in any stage, in tokens."""
    limits = [stage.max_completion_length for stage in config.stage]
    return min([config.rollout.max_completion_length, *(limit for limit in limits if limit)])


ALWAYS = (
    Rule("rollout.overlong_buffer rollout.max_completion_length", lambda c: c.rollout.overlong_buffer > shortest(c),
         "the penalty begins within the longest completion, in each stage: lower overlong_buffer"),
    Rule("eval.every eval.num_prompts", lambda c: c.eval.every > 0 and not c.eval.num_prompts,
         "nothing is held out to evaluate on; raise eval.num_prompts, or set eval.every = 0"),
    Rule("reward.functions eval.every", lambda c: not c.reward.functions and c.eval.every > 0,
         "nothing tells a right completion from a wrong one: name a reward (with reward.weights = [0] it is only watched)"),
    Rule("judge.mode eval.num_generations", compares_one,
         "the judge compares the completions to a prompt, so an evaluation needs at least 2"),
    Rule("refresh.drop_below refresh.drop_above", lambda c: c.refresh.drop_below >= c.refresh.drop_above,
         "no share lies between them, so every query would be dropped: set drop_below to less than drop_above"),
    Rule("refresh.every refresh.drop_above refresh.drop_below",
         lambda c: c.refresh.every > 0 and not c.refresh.drops and c.refresh.source is None,
         "a refresh would drop nothing: set one of them, or refresh.source"),
)  # fmt: skip
ENGINE = (
    Rule("sampler.sleep_level sampler.engines sampler.urls sampler.engine_args",
         lambda c: c.sampler.sleep_level > 0
         and max(c.sampler.engines, len(c.sampler.urls), devices_each(c.sampler.engine_args)) > 1,
         "several GPUs would sleep, of which the learner uses one; use one, or set sleep_level = 0"),
    Rule("sampler.urls",
         lambda c: bool(c.sampler.urls and (c.sampler.python or c.sampler.engine_args or c.sampler.engines > 1)),
         "these servers run already: sampler.python, sampler.engine_args and sampler.engines are for servers to start"),
    Rule("sampler.engine_args", around_settings,
         f"{', '.join(DIRECT)} are settings of [sampler] itself, with all that belongs to them: set them there"),
    Rule("sampler.engine_args",
         lambda c: any(value != OURS.get(name, value) for name, value in vllm_arguments(c.sampler).items()),
         f"{', '.join(OURS)} are set by the run, which also needs vLLM's counts of tokens: leave them out"),
    Rule("rollout.temperature eval.temperature",
         lambda c: c.sampler.engine == "vllm" and max(*temperatures(c), c.eval.temperature or 0) > 2,
         "vLLM samples at temperatures up to 2: lower it, in each stage too"),
    Rule("sampler.speculative_config", lambda c: not EXACT.issuperset(c.sampler.speculative_config),
         f"samples exactly with these keys alone: {', '.join(sorted(EXACT))}. Leave the others out"),
    Rule("sampler.speculative_config", lambda c: c.sampler.speculative_config.get("method") in INEXACT,
         f"with {' and '.join(INEXACT)} other requests, or code of yours, may change the samples: take another `method`"),
    Rule("sampler.speculative_config", needs_draft,
         f"`method` is none of {', '.join(NO_WEIGHTS)}, and the folders of weights that vLLM gets hold no draft: name one "
         "as `model`, such as the checkpoint with the heads of `mtp`, or take one of these methods"),
    Rule("sampler.speculative_config sampler.sleep_level",
         lambda c: "model" in c.sampler.speculative_config and c.sampler.sleep_level > 1,
         "level 2 drops the draft's weights too, and nothing brings them back: set sleep_level = 1"),
    Rule("sampler.urls", lambda c: len({url.rstrip("/") for url in c.sampler.urls}) < len(c.sampler.urls),
         "names a server twice: a server is one engine; leave it out"),
)  # fmt: skip
"""Of the engine, whether anything is trained or not."""
TRUNCATED = (
    "training needs the whole distribution (top_p = 1, top_k = 0). A truncated one gives a sampled token probability 0 as "
    "soon as the policy moves it out of the kept set, so the ratio is undefined; scoring it untruncated biases the ratio. "
    "To sharpen sampling lower rollout.temperature; eval.top_p and eval.top_k are free"
)
SAMPLING = (
    *ENGINE,
    Rule("rollout.max_staleness sampler.engine", lambda c: c.rollout.max_staleness > 0 and c.sampler.engine != "vllm",
         'this engine cannot run ahead of the trainer: set sampler.engine = "vllm"'),
    Rule("sampler.weight_transfer lora.rank",
         lambda c: c.sampler.weight_transfer == "broadcast" and c.lora.rank > 0,
         "adapters go through the folder: leave weight_transfer out"),
    Rule("sampler.sleep_level rollout.max_staleness", lambda c: c.sampler.sleep_level > 0 and c.rollout.max_staleness > 0,
         "vLLM samples while the learner updates; leave one of them out"),
    Rule("sampler.speculative_config algorithm.router_replay sampler.engine_args",
         lambda c: bool(c.sampler.speculative_config) and reports_experts(c),
         "vLLM may report the experts of drafted tokens that it rejected: leave out the drafts, or the experts"),
    Rule("rollout.top_p", lambda c: c.rollout.top_p < 1, TRUNCATED),
    Rule("rollout.top_k", lambda c: c.rollout.top_k > 0, TRUNCATED),
)  # fmt: skip
"""Of sampling for training, by `gspo train` and `gspo serve`."""
REFILLED = "a batch is refilled by the weights that then learn from it, so none can be sampled ahead; set one of them to 0"
ENVIRONMENT = (
    Rule("task.eval_source task.source",
         lambda c: (c.task.eval_source or c.task.source).startswith(VERIFIERS) != c.task.source.startswith(VERIFIERS),
         f"both must be {VERIFIERS}NAME, or neither"),
    Rule("task.environment task.source", lambda c: c.task.environment is not None and c.task.source.startswith(VERIFIERS),
         "the source is an environment itself: leave task.environment out"),
    Rule("reward.functions reward.weights",
         lambda c: in_environment(c.task) and (c.reward.functions != ["task"] or bool(c.reward.weights)),
         "no effect, since the environment (task.environment or task.source) gives the reward itself: leave them out"),
)  # fmt: skip
ONE_REWARD = 'it scales several rewards apart, and there is one: set "group", or name more functions'
TRAIN = (
    *ENVIRONMENT,
    Rule("algorithm.scale_rewards reward.functions",
         lambda c: c.algorithm.scale_rewards == "gdpo"
         and len(c.reward.functions) < 2
         and (c.task.source != GIVEN or in_environment(c.task)), ONE_REWARD),
    Rule("code.cpu_seconds code.total_cpu_seconds", lambda c: c.code.cpu_seconds > c.code.total_cpu_seconds,
         "one test would have more time than all together: raise code.total_cpu_seconds, or lower code.cpu_seconds"),
    Rule("refresh.source reward.functions",
         lambda c: c.refresh.source is not None and "task" in c.reward.functions and kind(c.task.source) == "generated",
         'the rows of a function have no scorer of their own for the reward "task": name another'),
    *SAMPLING,
    Rule("rollout.dynamic_sampling_rounds rollout.max_staleness",
         lambda c: c.rollout.dynamic_sampling_rounds > 0 and c.rollout.max_staleness > 0, REFILLED),
    Rule("refresh.every train.steps", lambda c: c.refresh.every >= c.train.steps,
         "the run ends before anything is refreshed: lower refresh.every, or leave it out"),
)  # fmt: skip
SERVE = (
    Rule("task.source task.environment", lambda c: in_environment(c.task),
         "agents that are served play by themselves: leave it out, or train with `gspo train`"),
    Rule("algorithm.scale_rewards", lambda c: c.algorithm.scale_rewards == "gdpo",
         'agents give each trajectory one reward: set "group", or leave it out'),
    Rule("serve.host", lambda c: not c.serve.host.strip(),
         "would listen on every address of this machine. Remove it for this machine alone, or set it to \"0.0.0.0\" if "
         "other machines shall connect"),
    Rule("eval.every", lambda c: c.eval.every > 0,
         'agents evaluate themselves and note it with `await model.log(groups, split="val")`; set it to 0'),
    Rule("rollout.dynamic_sampling_rounds", lambda c: c.rollout.dynamic_sampling_rounds > 0,
         "agents choose which trajectories they hand over; set it to 0"),
    Rule("rollout.max_staleness", lambda c: c.rollout.max_staleness > 0,
         "serve.max_age says how old a turn may be; set it to 0"),
    Rule("sampler.sleep_level", lambda c: c.sampler.sleep_level > 0, "agents may ask at any time; set it to 0"),
    *SAMPLING,
)  # fmt: skip
NOWHERE = "on a CPU there is nowhere to offload to: leave it off"
LEARN = (
    Rule("train.offload_optimizer model.device", lambda c: c.train.offload_optimizer and c.model.device == "cpu", NOWHERE),
    Rule("train.offload_reference model.device", lambda c: c.train.offload_reference and c.model.device == "cpu", NOWHERE),
    Rule("train.offload_optimizer optimizer.name", lambda c: c.train.offload_optimizer and c.optimizer.name != "adamw",
         "moments of 8 bits stay on the device: leave one out"),
    Rule("model.quantize model.expert_kernels", lambda c: c.model.quantize != "none" and c.model.expert_kernels != "auto",
         'it has a kernel of its own for experts: set model.expert_kernels = "auto"'),
    Rule("model.quantize model.attention",
         lambda c: c.model.quantize != "none" and c.model.attention.startswith("flash"),
         'the model is read and tried on the CPU before it is quantized, where that does not run: set "sdpa"'),
    Rule("model.quantize algorithm.critic",
         lambda c: c.model.quantize != "none" and c.algorithm.name == "ppo" and c.algorithm.critic == "copy",
         'a critic with a body of its own trains it: set algorithm.critic = "shared"'),
    Rule("train.offload_reference lora.rank",
         lambda c: c.train.offload_reference and c.lora.rank > 0 and not c.teacher.local,
         "with adapters there is no reference model to offload: leave it off"),
    Rule("train.offload_reference algorithm.beta",
         lambda c: c.train.offload_reference and not c.algorithm.beta and not c.teacher.local,
         "without a KL term there is no reference model to offload, and no teacher is loaded here either: leave it off"),
    Rule("teacher.path algorithm.name", lambda c: bool(c.teacher.path) and not ALGORITHMS[c.algorithm.name].by_turn,
         "a teacher gives each token an advantage of its own, which this algorithm has no place for: set algorithm.name to "
         + ", ".join(name for name, row in ALGORITHMS.items() if row.by_turn)),
    Rule("teacher.path model.path", is_own_teacher,
         "the model agrees with itself: it would learn nothing at first and be held back later, which is what "
         "algorithm.beta is for; name another teacher, or leave it out"),
    Rule("teacher.url rollout.temperature", lambda c: c.teacher.url is not None and {*temperatures(c)} != {1},
         "a server returns log-probabilities at temperature 1, so sample at 1 too, in each stage, or load the teacher here"),
    Rule("teacher.path rollout.dynamic_sampling_rounds",
         lambda c: bool(c.teacher.path) and c.rollout.dynamic_sampling_rounds > 0,
         "a teacher also teaches groups of equal rewards: set it to 0"),
)  # fmt: skip
"""Of the model and the optimizer, for all commands that train."""
