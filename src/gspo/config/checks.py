"""Checks across several fields of a configuration. All raise ValueError with a remedy."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterable
from urllib.parse import urlsplit

from gspo.config.engines import check_sampler
from gspo.config.field import COOLEST
from gspo.config.rewards import NAMED, CodeConfig, JudgeConfig, RewardModelConfig
from gspo.config.schema import Config
from gspo.config.source_kind import FUNCTION, VERIFIERS, played
from gspo.config.stages import check_refresh, check_stages
from gspo.config.suggestions import nearest
from gspo.config.unused import check_unused
from gspo.safe import HIDDEN, hidden_keys

LIBRARIES = ("reasoning_gym", "verifiers")


def check(config: Config) -> None:
    """Checks across several fields that apply to every command. Raises ValueError with a remedy."""
    reward, rollout = config.reward, config.rollout
    if not reward.functions:
        raise ValueError('reward.functions = []: name at least one, such as "task" or "exact"')
    check_names(reward.functions)
    check_judging(config)
    if reward.weights and not any(reward.weights):
        raise ValueError(f"reward.weights = {reward.weights}: at least one must differ from 0")
    for weight in reward.weights:
        if weight and not 1e-6 <= abs(weight) <= 1e6:
            raise ValueError(f"reward.weights = {reward.weights}: a weight is 0, or of a size between 1e-6 and 1e6")
    if any(not text for text in rollout.stop):
        raise ValueError(f"rollout.stop = {rollout.stop}: an empty string would end every completion at once")
    check_stages(config.stage, config.train.steps)
    check_refresh(config.refresh, config.stage)
    named = [("task.source", config.task.source), ("task.eval_source", config.task.eval_source)]
    named += [(f"stage[{number}].source", stage.source) for number, stage in enumerate(config.stage)]
    for key, source in named:
        library, colon, name = (source or "").partition(":")
        if colon and library not in LIBRARIES and (close := nearest(library, LIBRARIES)):
            raise ValueError(f"{key} = {source!r}: {library} is unknown{close.removesuffix('?')}:{name}?")
    for tracker in config.log.trackers:
        if tracker not in ("tensorboard", "wandb", "trackio"):
            raise ValueError(
                f"log.trackers: {tracker!r} is none of tensorboard, wandb, trackio"
                + nearest(tracker, ("tensorboard", "wandb", "trackio"))
            )
    if not config.log.dir.strip():
        raise ValueError("log.dir = '': name a folder for the run")
    if config.task.system in ("none", "null"):
        raise ValueError(f'task.system = {config.task.system!r}: would be the message itself; for none set it to ""')
    check_evaluation(config)
    for key, url in (
        *((f"sampler.urls[{i}]", url) for i, url in enumerate(config.sampler.urls)),
        ("judge.url", config.judge.url),
        ("reward_model.url", config.reward_model.url),
    ):
        if url is not None:
            check_url(key, url)


def check_evaluation(config: Config) -> None:
    """Checks the temperature of the evaluation, and that there are held-out prompts. Raises ValueError."""
    temperature, every = config.eval.temperature, config.eval.every
    if 0 < temperature < COOLEST:
        raise ValueError(f"eval.temperature = {temperature!r}: must be 0, or at least {COOLEST}")
    if every and not config.eval.num_prompts:
        raise ValueError(
            f"eval.every = {every} and eval.num_prompts = 0: nothing is held out to evaluate on; raise eval.num_prompts, or "
            "set eval.every = 0"
        )


def check_code(code: CodeConfig) -> None:
    """Checks [code]. Raises ValueError."""
    if code.seconds > code.total_seconds:
        raise ValueError(
            f"code.seconds = {code.seconds:g} and code.total_seconds = {code.total_seconds:g}: one test would have more "
            "time than all together: raise total_seconds, or lower seconds"
        )
    if code.public_column == code.tests_column:
        raise ValueError(f"code.public_column = {code.public_column!r}: is code.tests_column too: leave it out")


def check_url(key: str, url: str) -> None:
    """Checks that a URL is a valid HTTP address. Raises ValueError."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(c.isspace() for c in url):
        raise ValueError(f"{key} = {url!r:.80}: no address of a server; expected one such as http://127.0.0.1:8000")


def check_names(functions: Iterable[str]) -> None:
    """Checks the names in `reward.functions`. Raises ValueError."""
    for name in functions:
        if name not in NAMED and ":" not in name:
            near = nearest(name, NAMED)
            raise ValueError(f"reward.functions: {name!r} is none of {', '.join(NAMED)}, module:function{near}")


def check_judging(config: Config) -> None:
    """Checks what the rewards `model` and `judge` need, if they are used. Raises ValueError."""
    reward = config.reward
    if "model" in reward.functions:
        check_reward_model(config.reward_model)
    if "judge" in reward.functions:
        check_judge(config.judge)
        compares = reward.functions[0] == "judge" and config.judge.mode != "score"
        if compares and config.eval.every and config.eval.num_generations < 2:
            raise ValueError(
                f"eval.num_generations = {config.eval.num_generations}: judge.mode = {config.judge.mode!r} compares the "
                "completions to a prompt, so an evaluation needs at least 2"
            )


def check_judge(judge: JudgeConfig) -> None:
    """Checks the settings of a judge. Raises ValueError."""
    if not judge.model:
        raise ValueError("judge.model is required: the name of a model at the endpoint judge.url")
    if not judge.rubric.strip():
        raise ValueError("judge.rubric is required: say in words what makes a completion good")
    for name in ("model", "messages", "stream", "n"):
        if name in judge.request:
            raise ValueError(f"judge.request.{name}: is set by the judge itself; remove it")


def check_reward_model(model: RewardModelConfig) -> None:
    """Checks the settings of a reward model. Raises ValueError."""
    if not model.path:
        raise ValueError("reward_model.path is required: a folder or Hugging Face id, or with url the server's name for it")
    defaults = RewardModelConfig()
    if model.url is None:
        for name in ("key_variable", "timeout", "retries", "max_concurrent"):
            if getattr(model, name) != getattr(defaults, name):
                raise ValueError(f"reward_model.{name} is for a server: set reward_model.url")
        return
    for name in ("revision", "device", "dtype", "batch_size", "trust_remote_code", "allow_pickle"):
        if getattr(model, name) != getattr(defaults, name):
            raise ValueError(f"reward_model.{name} is of no use to a server, reward_model.url = {model.url!r}: remove it")
    if model.label is not None and not model.label.isdecimal():
        raise ValueError(f"reward_model.label = {model.label!r}: a server's labels go by their number, such as 0")
    if (model.max_length is None) != (model.too_long == "none"):
        raise ValueError(
            f"reward_model.max_length = {model.max_length}, reward_model.too_long = {model.too_long!r}: a server cuts texts "
            "to max_length from the side too_long; give both, or neither, to have it refuse texts that it cannot read"
        )


def check_required(config: Config, *keys: str) -> None:
    """Checks that `keys` (default: model and task) are set, and that no secret is missing. Raises ValueError."""
    for key in hidden_keys(dataclasses.asdict(config)):
        raise ValueError(f"{key}: run folders keep no secrets, and {HIDDEN} stands in this one's place: put the secret back")
    for key in keys or ("model.path", "task.source"):
        section, name = key.split(".")
        if not getattr(getattr(config, section), name):
            what = "the folder or Hugging Face id of a model" if key == "model.path" else "where the prompts come from"
            raise ValueError(f"{key} is required: set it to {what}")


def check_training(config: Config) -> None:
    """Checks what `gspo train` needs on top of `check`. Raises ValueError with a remedy."""
    check_required(config)
    check_code(config.code)
    check_sampler(config)
    check_whole(config)
    check_refill(config)
    check_environment(config)
    check_queries(config)
    check_unused(config, "train")


def check_queries(config: Config) -> None:
    """Checks the sources of queries of stages and of a refresh. Raises ValueError."""
    task, refresh = config.task, config.refresh
    sources = {f"stage[{number}].source": stage.source for number, stage in enumerate(config.stage)}
    for key, source in {**sources, "refresh.source": refresh.source}.items():
        if source is not None and VERIFIERS in (task.source[: len(VERIFIERS)], source[: len(VERIFIERS)]):
            raise ValueError(f"{key} = {source!r}: tasks of verifiers cannot be replaced while a run goes on: leave it out")
    if refresh.source is not None and not FUNCTION.fullmatch(refresh.source):
        raise ValueError(f"refresh.source = {refresh.source!r}: expected module:function, such as rows:new of rows.py")
    for number, stage in enumerate(config.stage):
        if config.rollout.delay and stage.temperature is not None:
            raise ValueError(
                f"rollout.delay = {config.rollout.delay} and stage[{number}].temperature = {stage.temperature:g}: the noise "
                "floor of a delayed step shows on completions that were sampled last, which would have another temperature: "
                "set delay to 0, or leave the temperature out"
            )
    if refresh.every >= config.train.steps:
        raise ValueError(
            f"refresh.every = {refresh.every}: the run ends with train.steps = {config.train.steps}, before anything is "
            "refreshed: lower it, or leave it out"
        )


def check_refill(config: Config) -> None:
    """Refuses `rollout.refill` together with sampling ahead. Raises ValueError."""
    rollout = config.rollout
    for name, value in (("max_staleness", rollout.max_staleness), ("delay", rollout.delay)):
        if rollout.refill and value:
            raise ValueError(
                f"rollout.refill = {rollout.refill} and rollout.{name} = {value}: a batch is refilled by the very weights "
                "that then learn from it, so none can be sampled ahead; set one of them to 0"
            )


def installed(library: str) -> bool:
    """Whether an optional library is installed, without importing it."""
    try:
        return importlib.util.find_spec(library) is not None
    except ValueError:  # sys.modules holds a stand-in without a spec
        return False


def check_packed(config: Config) -> None:
    """Checks settings that `model.quantize` excludes or needs. Raises ValueError."""
    kind = config.model.quantize
    if kind == "none":
        return
    what = f"model.quantize = {kind!r}"
    if config.algorithm.name == "ppo" and config.algorithm.critic == "copy":
        raise ValueError(f'{what}: a critic with a body of its own trains it: set algorithm.critic = "shared"')
    if config.model.experts != "auto":
        raise ValueError(f'model.experts = {config.model.experts!r}: {what} has a kernel of its own: set it to "auto"')
    if not installed("bitsandbytes"):
        raise ValueError(f'{what} needs bitsandbytes: pip install "gspo[quantized]"')


def check_optimizer(config: Config) -> None:
    """Checks settings that an 8-bit optimizer excludes or needs. Raises ValueError."""
    if config.optimizer.name != "adamw" and not installed("bitsandbytes"):
        raise ValueError(f'optimizer.name = {config.optimizer.name!r} needs bitsandbytes: pip install "gspo[quantized]"')
    if config.train.offload_optimizer and config.optimizer.name != "adamw":
        raise ValueError(
            f"train.offload_optimizer and optimizer.name = {config.optimizer.name!r}: moments of 8 bits stay on the device: "
            "leave one out"
        )


def check_reference(config: Config) -> None:
    """Checks that there is a reference model to offload. Raises ValueError."""
    if config.train.offload_reference and (config.lora.rank or not config.algorithm.beta):
        key = f"lora.rank = {config.lora.rank}" if config.lora.rank else "algorithm.beta = 0"
        raise ValueError(f"train.offload_reference: with {key} there is no reference model to offload: leave it off")


def check_environment(config: Config) -> None:
    """Refuses settings that conflict with an environment. Raises ValueError."""
    task = config.task
    if (task.eval_source or "").startswith(VERIFIERS) > task.source.startswith(VERIFIERS):
        raise ValueError(f"task.eval_source = {task.eval_source!r}: task.source must be {VERIFIERS}NAME too")
    if not played(task):
        return
    if task.source.startswith(VERIFIERS):
        name = f"task.source = {task.source!r}"
        if task.environment is not None:
            raise ValueError(f"task.environment = {task.environment!r}: {name} is an environment itself; unset it")
        if task.system != "auto":
            raise ValueError(f"task.system = {task.system!r:.40}: {name} has its own messages; unset it")
        if task.eval_source is not None and not task.eval_source.startswith(VERIFIERS):
            raise ValueError(f"task.eval_source = {task.eval_source!r}: {name}, so it must be {VERIFIERS}NAME too")
    else:
        name = "task.environment"
    if config.reward.functions != ["task"] or config.reward.weights:
        raise ValueError(f"reward.functions and reward.weights have no effect: {name} gives the reward itself")


def check_serving(config: Config) -> None:
    """Checks what `gspo serve` needs on top of `check`. Raises ValueError with a remedy."""
    check_required(config, "model.path")
    if not config.serve.host.strip():
        raise ValueError(
            f"serve.host = {config.serve.host!r}: would listen on every address of this machine. Remove it for this machine "
            'alone, or set it to "0.0.0.0" if other machines shall connect'
        )
    if played(config.task):
        key = "task.source" if config.task.environment is None else "task.environment"
        raise ValueError(f"{key}: agents that are served play by themselves: leave it out, or train with `gspo train`")
    for key, value, remedy in (
        (
            "eval.every",
            config.eval.every,
            'agents evaluate themselves and note it with `await model.log(groups, split="val")`',
        ),
        ("rollout.refill", config.rollout.refill, "agents choose which trajectories they hand over"),
        ("rollout.delay", config.rollout.delay, "agents hand their trajectories over when they like"),
        ("rollout.max_staleness", config.rollout.max_staleness, "serve.max_age says how old a turn may be"),
        ("sampler.sleep_level", config.sampler.sleep_level, "agents may ask at any time"),
    ):
        if value:
            raise ValueError(f"{key} = {value}: {remedy}; set it to 0")
    check_sampler(config)
    check_whole(config)
    check_unused(config, "serve")


def check_whole(config: Config) -> None:
    """Refuses truncated sampling in training, which needs the whole distribution. Raises ValueError."""
    rollout = config.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        key, value = ("rollout.top_p", rollout.top_p) if rollout.top_p < 1 else ("rollout.top_k", rollout.top_k)
        raise ValueError(
            f"{key} = {value}: training needs the whole distribution (top_p = 1, top_k = 0). A truncated one gives a "
            "sampled token probability 0 as soon as the policy moves it out of the kept set, so the ratio is undefined; "
            "scoring it untruncated biases the ratio. To sharpen sampling lower rollout.temperature; eval.top_p and "
            "eval.top_k are free"
        )
