"""From the words of `gspo eval --benchmark` to the configuration of the evaluation: presets, what a benchmark asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo.config.files import from_home, load, read_toml
from gspo.config.near import nearest
from gspo.config.origin import BENCHMARK
from gspo.config.schema import Config
from gspo.data.benchmarks.table import named, short

PRESETS: dict[str, dict[str, Any]] = {
    "qwen3": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},  # thinking mode, as its model card says
    "qwen3-instruct": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
TOKENS = 32_768
"""Longest reply where the benchmark says no other."""
PROGRAMS = 3600.0
"""Seconds that a call may take which runs the programs of many replies; each test has its own limit."""
KEPT = ("system", "template", "template_args")
"""Of a training configuration's [task]: how prompts are put, not where they come from."""


@dataclass(frozen=True)
class Options:
    """The words of the command. model: a folder, an id, the name at `url`, or a configuration file. benchmark: a name or a
    file. of_source: options of the benchmark, such as its release. url: an OpenAI-compatible endpoint that samples.
    """

    model: str
    benchmark: str
    dir: Path | None = None
    preset: str | None = None
    of_source: tuple[tuple[str, str], ...] = ()
    url: str = ""
    key_variable: str = ""
    against: Path | None = None
    contests: Path | None = None
    as_published: bool = False


def configured(options: Options, fields: dict[str, str]) -> Config:
    """The configuration of an evaluation. What was typed comes before the preset, that before the file, and that before
    what is customary for the benchmark. Raises ValueError as `load` does, and for an unknown benchmark or preset.
    """
    benchmark = named(options.benchmark)
    if options.preset is not None and options.preset not in PRESETS:
        close = nearest(options.preset, PRESETS)
        raise ValueError(f"--preset {options.preset!r}: is none of {', '.join(PRESETS)}{close}")
    file = options.model if options.model.endswith(".toml") else None
    raw = read_toml(file, "configuration file") if file else {"model": {"path": options.model}}
    made: dict[str, Any] = {f"{section}.{key}": value for section in raw for key, value in _table(raw, section).items()}
    made = {key: value for key, value in made.items() if not _of_training(key)}
    longest = benchmark.tokens or TOKENS
    custom: dict[str, Any] = {"eval.num_generations": benchmark.samples, "eval.max_completion_length": longest}
    if ":" in benchmark.reward:
        custom["reward.timeout"] = PROGRAMS
    asked: dict[str, Any] = {}
    if options.preset is not None:
        asked = {f"eval.{key}": value for key, value in PRESETS[options.preset].items()}
        asked["eval.max_completion_length"] = longest
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
    return load(None, custom | made | asked | fixed | fields)


def _table(raw: dict[str, Any], section: str) -> dict[str, Any]:
    if not isinstance(raw[section], dict):
        raise ValueError(f"{section}: expected a table [{section}]")
    return raw[section]


def _of_training(key: str) -> bool:
    """Whether a setting of a file is about the prompts and rewards of a training run."""
    section, _, name = key.partition(".")
    return (section == "task" and name not in KEPT) or (section == "reward" and name not in ("timeout", "workers"))


def folder_of(options: Options, config: Config) -> Path:
    """Where the evaluation is kept: what was asked for, or runs/eval/BENCHMARK-MODEL."""
    if options.dir is not None:
        return Path(from_home("--dir", str(options.dir)))
    model = Path(config.model.path)
    name = f"{model.parent.name}-{model.name}" if model.name == "model" else model.name
    return Path("runs/eval") / f"{short(options.benchmark)}-{name or 'model'}"
