"""Checks of single settings that a range cannot express: names, addresses, what is required. All raise ValueError."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import urlsplit

from gspo.config.conflicts import ALWAYS, check_conflicts
from gspo.config.engines import check_engine_name, devices_each
from gspo.config.field import COOLEST
from gspo.config.import_function import check_module
from gspo.config.rewards import NAMED, JudgeConfig, RewardModelConfig
from gspo.config.schema import Config
from gspo.config.source_kind import FUNCTION, VERIFIERS, kind, same_place
from gspo.config.stages import SETS, rollout_at
from gspo.config.suggestions import nearest
from gspo.config.training import TRACKERS
from gspo.config.values import shown
from gspo.safe import HIDDEN, hidden_keys

LIBRARIES = ("reasoning_gym", "verifiers")


def check(config: Config) -> None:
    """Checks across several fields that apply to every command. Raises ValueError with a remedy."""
    reward = config.reward
    if not reward.functions and not config.teacher.path:
        raise ValueError('reward.functions = []: name at least one, such as "task" or "exact", or a teacher (teacher.path)')
    check_names(reward.functions)
    check_engine_name(config.sampler.engine)
    if config.sampler.engine == "vllm":
        devices_each(config.sampler.engine_args)  # raises
    if "model" in reward.functions:
        check_reward_model(config.reward_model)
    if "judge" in reward.functions:
        check_judge(config.judge)
    if reward.weights and not any(reward.weights) and not config.teacher.path:
        raise ValueError(f"reward.weights = {reward.weights}: at least one must differ from 0, unless there is a teacher")
    for weight in reward.weights:
        if weight and not 1e-6 <= abs(weight) <= 1e6:
            raise ValueError(f"reward.weights = {reward.weights}: a weight is 0, or of a size between 1e-6 and 1e6")
    if any(not text for text in config.rollout.stop):
        raise ValueError(f"rollout.stop = {config.rollout.stop}: an empty string would end every completion at once")
    check_stages(config)
    check_conflicts(config, ALWAYS)
    named = [("task.source", config.task.source), ("task.eval_source", config.task.eval_source)]
    named += [(f"stage[{number}].source", stage.source) for number, stage in enumerate(config.stage)]
    for key, source in named:
        library, colon, name = (source or "").partition(":")
        close = nearest(library, LIBRARIES) if colon and library not in LIBRARIES else ""
        if close and not is_there(f"{library}:{name}"):
            raise ValueError(f"{key} = {source!r}: {library} is unknown{close.removesuffix('?')}:{name}?")
    for tracker in config.log.trackers:
        if tracker not in TRACKERS:
            raise ValueError(f"log.trackers: {tracker!r} is none of {', '.join(TRACKERS)}{nearest(tracker, TRACKERS)}")
    if not config.log.dir.strip():
        raise ValueError("log.dir = '': name a folder for the run")
    if config.task.system in ("none", "null"):
        raise ValueError(f'task.system = {config.task.system!r}: would be the message itself; for none set it to ""')
    if config.task.date is not None:
        check_date(config.task.date)
    if config.eval.temperature is not None and 0 < config.eval.temperature < COOLEST:
        raise ValueError(f"eval.temperature = {config.eval.temperature!r}: must be 0, or at least {COOLEST}")
    for key, url in (
        *((f"sampler.urls[{i}]", url) for i, url in enumerate(config.sampler.urls)),
        ("judge.url", config.judge.url),
        ("reward_model.url", config.reward_model.url),
        ("teacher.url", config.teacher.url),
    ):
        if url is not None:
            check_url(key, url)


def is_there(spec: str) -> bool:
    """Whether `spec` is a module:function, and there is such a module: a file of the user's. Imports nothing."""
    try:
        check_module(spec, "")
    except ValueError:
        return False
    return FUNCTION.fullmatch(spec) is not None


def check_date(date: str) -> None:
    """Checks that `task.date` is a day. Raises ValueError."""
    with suppress(ValueError):
        if datetime.date.fromisoformat(date).isoformat() == date:
            return
    raise ValueError(f"task.date = {date!r:.80}: expected a day, such as 2026-01-31")


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
            such = ":".join(name.rsplit(".", 1)) if "." in name else f"my_task:{name}"
            own = f"{' A' if near else '; a'} function of your own is written module:function, such as {such}"
            raise ValueError(f"reward.functions: {name!r} is none of {', '.join(NAMED)}{near}{own}")


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
        raise ValueError(f"reward_model.label = {model.label!r}: a server names labels by number, such as 0")
    if (model.max_length is None) != (model.too_long == "none"):
        both = f"reward_model.max_length = {model.max_length}, reward_model.too_long = {model.too_long!r}"
        raise ValueError(f"{both}: a server cuts texts by both: give both, or neither, to have long texts refused")


def check_required(config: Config, *keys: str) -> None:
    """Checks that `keys` (default: model and task) are set, and that no secret is missing. Raises ValueError."""
    for key in hidden_keys(dataclasses.asdict(config)):
        raise ValueError(f"{key}: run folders keep no secrets, and {HIDDEN} stands in this one's place: put the secret back")
    for key in keys or ("model.path", "task.source"):
        section, name = key.split(".")
        if not getattr(getattr(config, section), name):
            what = "the folder or Hugging Face id of a model" if key == "model.path" else "where the prompts come from"
            raise ValueError(f"{key} is required: set it to {what}")


def scored_by_task(config: Config) -> bool:
    """Whether the scorer of a generated task scores the completions."""
    return "task" in config.reward.functions and kind(config.task.source) == "generated"


def check_stages(config: Config) -> None:
    """Checks that stages are in order, lie within the run's steps, and set something. Raises ValueError."""
    before, steps, refreshed = 0, config.train.steps, config.refresh.source
    for number, stage in enumerate(config.stage):
        key = f"stage[{number}]"
        if not stage.at:
            raise ValueError(f"{key}.at is required: set it to the first step of the stage")
        if stage.at <= before:
            raise ValueError(f"{key}.at = {stage.at}: stage[{number - 1}].at = {before} is not before it: put them in order")
        if stage.at > steps:
            raise ValueError(f"{key}.at = {stage.at}: the run ends with train.steps = {steps}: leave it out, or raise steps")
        names = [field.name for field in dataclasses.fields(stage) if field.name != "at"]
        if all(getattr(stage, name) is None for name in names):
            raise ValueError(f"{key}: sets nothing at step {stage.at}: set one of {', '.join(names)}, or leave it out")
        if stage.source is not None and not stage.source.strip():
            raise ValueError(f"{key}.source = {stage.source!r}: name a source of prompts, or leave it out")
        if stage.source is not None and scored_by_task(config) and kind(stage.source) != "generated":
            problem = 'has no scorer of its own for the reward "task"'
            raise ValueError(f"{key}.source = {stage.source!r}: {problem}: name another in reward.functions")
        check_changes(config, number)
        if refreshed is not None and stage.source is not None:
            both = f"refresh.source = {refreshed!r} and {key}.source = {stage.source!r}"
            raise ValueError(f"{both}: each would replace the other's queries: leave one of them out")
        before = stage.at


def check_changes(config: Config, number: int) -> None:
    """Checks that what a stage sets did not hold before it. Raises ValueError."""
    stage, earlier = config.stage[number], config.stage[:number]
    before = rollout_at(config.rollout, earlier, stage.at)
    held = {name: getattr(before, name) for name in SETS}
    sources = [each.source for each in earlier if each.source is not None]
    if sources or not config.task.config:  # the source of a stage is read without task.config
        held["source"] = (sources or [config.task.source])[-1]
    for name, value in held.items():
        given = getattr(stage, name)
        if given == value or (name == "source" and given and same_place(value, given)):
            key = f"stage[{number}].{name} = {shown(value, name)}"
            raise ValueError(f"{key} has no effect: it holds before step {stage.at} already; leave it out")


def check_queries(config: Config) -> None:
    """Checks the sources of queries of stages and of a refresh. Raises ValueError."""
    task, refresh = config.task, config.refresh
    sources = {f"stage[{number}].source": stage.source for number, stage in enumerate(config.stage)}
    for key, source in {**sources, "refresh.source": refresh.source}.items():
        if source is not None and VERIFIERS in (task.source[: len(VERIFIERS)], source[: len(VERIFIERS)]):
            raise ValueError(f"{key} = {source!r}: tasks of verifiers cannot be replaced while a run goes on: leave it out")
    if refresh.source is not None and not FUNCTION.fullmatch(refresh.source):
        raise ValueError(f"refresh.source = {refresh.source!r}: expected module:function, such as rows:new of rows.py")
