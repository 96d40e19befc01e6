"""Turns the options of `gspo eval --benchmark` into a configuration: presets, and the defaults of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo.config.checks import check_url
from gspo.config.files import from_home, load, read_toml
from gspo.config.rewards import runs_programs
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.config.source_kind import BENCHMARK
from gspo.config.suggestions import nearest
from gspo.config.unused import OF_TRAINING, check_unused
from gspo.data.benchmarks.table import named, own_options, short

PRESETS: dict[str, dict[str, Any]] = {
    "qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},  # thinking mode, from its model card
    "qwen3-instruct": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
TOKENS = 32_768
"""Longest reply in tokens, if the benchmark does not set it."""
KEPT = {
    "model": None, "sampler": None, "eval": None, "task": ("system", "template", "template_args"), "rollout": ("stop",),
    "reward": ("timeout", "workers", "memory"), "train": ("seed",), "code": ("sandbox",),
}  # fmt: skip
"""What is taken from a training configuration, by section; None: all of it. Prompts and rewards are the benchmark's. [code]
is for benchmarks that run programs, which have limits of their own."""
OF_A_RUN = ("eval.num_prompts",)
OF_A_MODEL_HERE = ("model", "sampler", "task.template")
ASKED = ("model.path", "sampler.timeout", "sampler.batch_size")
"""Those of OF_A_MODEL_HERE that apply to an endpoint too."""


@dataclass(frozen=True)
class Options:
    """The options of the command.

    Attributes:
        model: A folder, an id, the name at `url`, or a configuration file.
        benchmark: A name or a file.
        of_source: Options of the benchmark, such as its release.
        url: An OpenAI-compatible endpoint that samples.
        refused_as_wrong: Whether replies that the endpoint refuses count, as wrong.
    """

    model: str
    benchmark: str
    dir: Path | None = None
    preset: str | None = None
    of_source: tuple[tuple[str, str], ...] = ()
    url: str = ""
    key_variable: str = ""
    refused_as_wrong: bool = False
    against: Path | None = None
    contests: Path | None = None
    as_published: bool = False


def configured(options: Options, fields: dict[str, str]) -> Config:
    """Returns the configuration of an evaluation. Typed fields take precedence over the preset, that over the file, and that
    over the benchmark's defaults. Raises ValueError as `load` does, and for an unknown benchmark or preset.
    """
    benchmark = named(options.benchmark)
    if options.preset is not None and options.preset not in PRESETS:
        close = nearest(options.preset, PRESETS)
        raise ValueError(f"--preset {options.preset!r}: is none of {', '.join(PRESETS)}{close}")
    file = options.model if options.model.endswith(".toml") else None
    raw = read_toml(file, "configuration file") if file else {"model": {"path": options.model}}
    made: dict[str, Any] = {f"{section}.{key}": value for section in raw for key, value in _table(raw, section).items()}
    unread = "reward.timeout" if runs_programs([benchmark.reward]) else "code.sandbox"
    made = {key: value for key, value in made.items() if _kept(key) and key != unread}
    longest = benchmark.tokens or TOKENS
    custom: dict[str, Any] = {"eval.num_generations": benchmark.samples, "eval.max_completion_length": longest}
    asked: dict[str, Any] = {}
    if options.preset is not None:
        asked = {f"eval.{key}": value for key, value in PRESETS[options.preset].items()}
        asked["eval.max_completion_length"] = longest
    for name, value in options.of_source:
        if name not in own_options(options.benchmark):
            raise ValueError(f"--{name} {value}: benchmark {options.benchmark} has no such option: leave it out")
    if options.url:
        check_url("--url", options.url)
    fixed: dict[str, Any] = {
        "task.source": BENCHMARK + options.benchmark,
        "task.config": dict(options.of_source),
        "reward.functions": [benchmark.reward],
        "reward.answer_column": "answer",
        "reward.correct_at": 1.0,
    }
    for key in fixed:
        if key in fields:
            raise ValueError(f"--{key}: has no effect, the benchmark {options.benchmark} says what it is; leave it out")
    if options.url and (others := [key for key in fields if key.startswith(OF_A_MODEL_HERE) and key not in ASKED]):
        raise ValueError(f"--{others[0]}: has no effect on the endpoint {options.url}, which says it itself; leave it out")
    config = load(None, custom | made | asked | fixed | fields)
    if not config.eval.temperature:  # a preset's top_p and top_k have no effect then
        asked = {key: value for key, value in asked.items() if key not in ("eval.top_p", "eval.top_k")}
        config = load(None, custom | made | asked | fixed | fields)
    for key in fields:
        if key in OF_A_RUN or not _kept(key):
            raise ValueError(f"--{key}: has no effect on an evaluation with --benchmark: leave it out")
    checked = config
    if options.url:  # requests to the endpoint use sampler.timeout, whatever the engine
        usual = replace(config.sampler, timeout=SamplerConfig().timeout)
        checked = replace(config, sampler=usual)
    check_unused(checked, "eval")
    return config


def _table(raw: dict[str, Any], section: str) -> dict[str, Any]:
    if not isinstance(raw[section], dict):
        raise ValueError(f"{section}: expected a table [{section}]")
    return raw[section]


def _kept(key: str) -> bool:
    section, _, name = key.partition(".")
    names = KEPT.get(section, ())
    return key not in OF_TRAINING and (names is None or name in names)


def folder_of(options: Options, config: Config) -> Path:
    """The folder of the evaluation: the one asked for, or runs/eval/BENCHMARK-MODEL."""
    if options.dir is not None:
        return Path(from_home("--dir", str(options.dir)))
    model = Path(config.model.path)
    name = f"{model.parent.name}-{model.name}" if model.name == "model" else model.name
    return Path("runs/eval") / f"{short(options.benchmark)}-{name or 'model'}"
