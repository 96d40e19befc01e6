"""Turns the options of `gspo eval --benchmark` into a configuration: presets, and the defaults of a benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspo.config.checks import check_url
from gspo.config.files import from_home, load, read_toml
from gspo.config.needs import check_needs
from gspo.config.rewards import runs_programs
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import STAGE, Config
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
    "model": None, "sampler": None, "eval": None, "task": ("system", "template", "template_args", "date"),
    "rollout": ("stop",), "reward": ("timeout", "workers", "memory"), "train": ("seed",), "code": ("sandbox",),
}  # fmt: skip
"""What is taken from a training configuration, by section; None: all of it. Prompts and rewards are the benchmark's. [code]
is for benchmarks that run programs, which have limits of their own."""
OF_A_MODEL_HERE = ("model", "sampler", "task.template", "task.date")
ASKED = ("model.path", "sampler.timeout", "sampler.batch_size")
"""Those of OF_A_MODEL_HERE that apply to an endpoint too."""


@dataclass(frozen=True)
class Options:
    """The options of the command, as its help describes them. `of_source`: those of the benchmark, such as its release."""

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
    """The configuration of an evaluation. Typed fields take precedence over the preset, that over the file, and that
    over the benchmark's defaults. Raises ValueError as `load` does, and for an unknown benchmark or preset.
    """
    benchmark = named(options.benchmark)
    longest = {"eval.max_completion_length": benchmark.tokens or TOKENS}
    usual = {"eval.num_generations": benchmark.samples, "eval.temperature": 1.0} | longest
    preset = _preset(options, longest)
    fixed: dict[str, Any] = {
        "task.source": BENCHMARK + options.benchmark,
        "task.config": dict(options.of_source),
        "reward.functions": [benchmark.reward],
        "reward.answer_column": "answer",
        "reward.correct_threshold": 1.0,
    }
    file = _from_file(options, benchmark.reward)
    _check_options(options, fields)
    config = load(None, usual | file | preset | fixed | fields)
    if config.eval.temperature == 0:  # the benchmark's number of samples and a preset's top_p and top_k have no effect then
        del usual["eval.num_generations"]
        preset = {key: value for key, value in preset.items() if key not in ("eval.top_p", "eval.top_k")}
        config = load(None, usual | file | preset | fixed | fields)
    for key in fields:
        if not _kept(key):
            raise ValueError(f"--{key}: has no effect on an evaluation with --benchmark: leave it out")
    if options.url:  # requests to an endpoint use sampler.timeout, whatever the engine
        check_unused(replace(config, sampler=replace(config.sampler, timeout=SamplerConfig.timeout)), "eval")
    else:
        check_unused(config, "eval")
    check_needs(config, "endpoint" if options.url else "benchmark")
    return config


def _preset(options: Options, longest: dict[str, Any]) -> dict[str, Any]:
    if options.preset is None:
        return {}
    if options.preset not in PRESETS:
        raise ValueError(f"--preset {options.preset!r}: is none of {', '.join(PRESETS)}{nearest(options.preset, PRESETS)}")
    return {f"eval.{key}": value for key, value in PRESETS[options.preset].items()} | longest


def _from_file(options: Options, reward: str) -> dict[str, Any]:
    """`section.key` -> value: what is taken from the configuration file, or the model alone."""
    if not options.model.endswith(".toml"):
        return {"model.path": options.model}
    unread = "reward.timeout" if runs_programs([reward]) else "code.sandbox"
    found: dict[str, Any] = {}
    for section, table in read_toml(options.model, "configuration file").items():
        if section == STAGE:
            continue
        if not isinstance(table, dict):
            raise ValueError(f"{section}: expected a table [{section}]")
        keys = {f"{section}.{name}": value for name, value in table.items()}
        found |= {key: value for key, value in keys.items() if _kept(key) and key != unread}
    return found


def _check_options(options: Options, fields: dict[str, str]) -> None:
    """Raises ValueError for an option that has no effect on this benchmark, or at this endpoint."""
    for name, value in options.of_source:
        if name not in own_options(options.benchmark):
            raise ValueError(f"--{name} {value}: benchmark {options.benchmark} has no such option: leave it out")
    if options.url:
        check_url("--url", options.url)
    for key in fields if options.url else ():
        if key.startswith(OF_A_MODEL_HERE) and key not in ASKED:
            raise ValueError(f"--{key}: has no effect on the endpoint {options.url}, which says it itself; leave it out")


def _kept(key: str) -> bool:
    section, _, name = key.partition(".")
    names = KEPT.get(section, ())
    return key not in (*OF_TRAINING, "eval.num_prompts") and (names is None or name in names)


def folder_of(options: Options, config: Config) -> Path:
    """The folder of the evaluation: the one asked for, or runs/eval/BENCHMARK-MODEL."""
    if options.dir is not None:
        return Path(from_home("--dir", str(options.dir)))
    model = Path(config.model.path)
    name = f"{model.parent.name}-{model.name}" if model.name == "model" else model.name
    return Path("runs/eval") / f"{short(options.benchmark)}-{name or 'model'}"
