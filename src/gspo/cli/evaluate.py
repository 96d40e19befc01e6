"""`gspo eval`: measures accuracy on held-out prompts of a task, or on a benchmark."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gspo.cli.arguments import CONFIG_FILE, Command, path, path_or_name
from gspo.cli.places import check_places
from gspo.cli.recipes import fetch_model
from gspo.config.commands import check_command
from gspo.config.files import load
from gspo.config.recipes import file_of
from gspo.config.schema import Config
from gspo.config.unused import OF_TRAINING
from gspo.launch.processes import importing
from gspo.safe import replace_file, visible

if TYPE_CHECKING:
    from gspo.eval.settings import Options
    from gspo.types import Group, Metrics

logger = logging.getLogger(__name__)

WORDS = (
    ("benchmark", "NAME|FILE", "aime24, aime25, livecodebench, codeforces, humaneval, or a file of problems and answers"),
    ("data", "SOURCE", "where its rows are: a file, or a data set's id (default: its own data set on the Hub)"),
    ("name", "NAME", "configuration of the data set, such as verifiable of open-r1/codeforces"),
    ("split", "NAME", "split of the data set (default: the benchmark's own)"),
    ("release", "NAME", "livecodebench: release of the data, v1 to v6 (default: v5)"),
    ("window", "FROM..TO", "livecodebench: months or days of the contests, such as 2024-10..2025-02"),
    ("preset", "NAME", "how to sample, by a model card: qwen3, qwen3-instruct"),
    ("url", "URL", "OpenAI-compatible endpoint that samples, such as http://127.0.0.1:8000/v1"),
    ("key-variable", "NAME", "environment variable with the endpoint's API key (default: OPENAI_API_KEY, if it is set)"),
)
PATHS = (
    ("dir", "DIR", "folder of the evaluation; one that was stopped goes on (default: runs/eval/BENCHMARK-MODEL)"),
    ("against", "DIR", "compare with the finished evaluation in this folder, paired by problem"),
    ("contests", "FILE", "codeforces: standings and ratings of the contests, for a CodeElo-style rating"),
)
FLAGS = (
    ("refused-as-wrong", "count replies that the endpoint refuses to give as wrong (HTTP 4xx)"),
    ("as-published", "codeforces: CodeElo's published script, which is off by one place"),
)
OF_SOURCE = ("data", "name", "split", "release", "window")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config",
        metavar="CONFIG.toml|MODEL",
        help=f"{CONFIG_FILE}; with --benchmark also a model's folder or id, or with --url its name there",
    )
    parser.add_argument("--out", type=path, metavar="FILE", help="write each completion to this .jsonl file")
    group = parser.add_argument_group("on a benchmark")
    for name, metavar, text in WORDS:
        group.add_argument(f"--{name}", metavar=metavar, help=text, type=path_or_name)
    for name, metavar, text in PATHS:
        group.add_argument(f"--{name}", metavar=metavar, help=text, type=path)
    for name, text in FLAGS:
        group.add_argument(f"--{name}", action="store_true", help=text)


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    if _on_a_benchmark(arguments):
        from gspo.eval.settings import configured

        options = _options_of(arguments)
        config = configured(options, fields)
        if not options.url:
            fetch_model(config)
        with importing():
            from gspo.eval.run import evaluate
        return evaluate(options, config)
    check_typed(fields)
    config = load(arguments.config, fields)
    trained = Path(file_of(arguments.config)).parent / "model"
    if "model.path" not in fields and trained.is_dir() and (trained.parent / "metrics.jsonl").is_file():
        logger.info("evaluating the model that the run began with; the one that it trained: --model.path %s", trained)
    check_command(config, "eval")
    fetch_model(config)
    check_places(config, "eval")
    return _held_out(config, arguments.out)


def _on_a_benchmark(arguments: argparse.Namespace) -> bool:
    if arguments.benchmark is not None and arguments.out is not None:
        raise ValueError("--out: has no effect beside --benchmark, which keeps its replies in --dir; leave it out")
    for option in (option for table in (WORDS[1:], PATHS, FLAGS) for option, *_ in table):
        if arguments.benchmark is None and getattr(arguments, option.replace("-", "_")):
            other = "give a task's rows as --task.eval_source" if option == "data" else "leave it out"
            raise ValueError(f"--{option}: is for a benchmark: name one with --benchmark, or {other}")
    return arguments.benchmark is not None


def _options_of(arguments: argparse.Namespace) -> Options:
    from gspo.eval.settings import Options

    of_source = [(name, getattr(arguments, name)) for name in OF_SOURCE]
    return Options(
        model=file_of(arguments.config), benchmark=arguments.benchmark, dir=arguments.dir, preset=arguments.preset,
        of_source=tuple((name, value) for name, value in of_source if value is not None),
        url=arguments.url or "", key_variable=arguments.key_variable or "", refused_as_wrong=arguments.refused_as_wrong,
        against=arguments.against, contests=arguments.contests, as_published=arguments.as_published,
    )  # fmt: skip


def check_typed(keys: Iterable[str]) -> None:
    """Raises ValueError for a field on the command line that only `gspo train` reads."""
    for key in keys:
        if key in OF_TRAINING:
            raise ValueError(f"--{key}: has no effect on `gspo eval`, which trains nothing: leave it out")


def _held_out(config: Config, out: Path | None) -> int:
    with importing():
        from gspo import api
        from gspo.rollout.metrics import describe
        from gspo.runs.log import to_json

    if out is not None:
        _check_new(out)
    metrics, groups = api.evaluate(config=config)
    with suppress(BrokenPipeError):  # nobody reads it; the file counts
        _print_metrics(config, metrics, groups)
    if out is not None:
        column = config.reward.answer_column
        rollouts = (rollout for group in groups for rollout in group.rollouts)
        replace_file(out, b"".join(to_json(describe(rollout, column)) for rollout in rollouts))
    return 0


def _check_new(out: Path) -> None:
    """Raises ValueError if no new file can be written there."""
    if out.exists():
        raise ValueError(f"--out {out}: exists already; give another name")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, b"")
        out.unlink()
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be written: {error}") from None


def _print_metrics(config: Config, metrics: Metrics, groups: Sequence[Group]) -> None:
    from gspo.assembly.samplers import eval_temperature
    from gspo.rollout.failures import cause, eval_errors

    low, high = (metrics[f"eval/accuracy_{end}"] for end in ("low", "high"))
    print(f"model {config.model.path}, at temperature {eval_temperature(config):g}")
    failed, errors = metrics["eval/failed"], eval_errors(groups)
    note = f"; {failed:.0f} of {len(errors)} completions were not scored and count as wrong" if failed else ""
    print(f"accuracy {metrics['eval/accuracy']:.4f}  (95 % interval {low:.4f} to {high:.4f}){note}")
    if failed:
        print(visible(cause(errors)))
    for name, value in sorted(metrics.items()):
        if not name.startswith("eval/accuracy"):
            print(f"{name.removeprefix('eval/')} {value:.4g}")


def _resume_hint(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    return "; the same command goes on with what is left" if arguments.benchmark is not None else ""


EVAL = Command(
    "eval",
    "evaluate a model on held-out prompts, or on a benchmark: accuracy with a 95 % interval",
    _add_arguments,
    _run,
    resume_hint=_resume_hint,
)
