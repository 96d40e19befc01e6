"""The words of the command line: its commands, their options, and the fields of a configuration among them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from gspo import __version__
from gspo.config.field import SEEDS
from gspo.config.files import from_home
from gspo.config.names import nearest_key
from gspo.config.unused import OF_TRAINING

FIELDS = "Set any configuration field with --section.key VALUE. `gspo config` lists all fields with meaning and unit."


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, as all bad input is."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError that names the help to read."""
        raise ValueError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def parser() -> Parser:
    """The commands and their options."""
    top = Parser(
        prog="gspo",
        description="Train language models with Group Sequence Policy Optimization (GSPO).",
        epilog="Start with `gspo demo`: it trains a tiny mixture of experts in a few minutes on a CPU.",
    )
    top.add_argument("--version", action="version", version=f"gspo {__version__}")
    top.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, config: str | None = None, fields: bool = True) -> argparse.ArgumentParser:
        help = text.replace("%", "%%")  # argparse formats this one only
        subparser = commands.add_parser(
            name, help=help, description=text, epilog=FIELDS if fields else None, allow_abbrev=False
        )
        subparser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if config:
            subparser.add_argument(
                "config", metavar="CONFIG.toml", nargs=config if config == "?" else None, help="configuration file"
            )
        return subparser

    _running(command)
    _reading(command)
    return top


def _running(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that take a configuration or a study."""
    for name, text in (
        ("train", "train a model with GSPO or another algorithm, such as GRPO or PPO"),
        ("sft", "fine-tune a model on prompts with completions to imitate (supervised, for a cold start)"),
        ("serve", "serve a model to agents at an OpenAI-compatible endpoint, and train it on what they return"),
    ):
        subparser = command(name, text, "1")
        if name == "train":
            subparser.add_argument(
                "--from-probe", type=place, metavar="DIR",
                help="take the algorithm that a `gspo probe` in this folder recommends; --algorithm fields come before it",
            )  # fmt: skip
        subparser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in the run folder")
        subparser.add_argument(
            "--allow", action="append", default=[], metavar="SECTION.KEY",
            help="with --resume: a setting that may differ from the run's own, such as optimizer.lr; repeatable",
        )  # fmt: skip
    _evaluating(command("eval", "evaluate a model on held-out prompts, or on a benchmark: accuracy with a 95 % interval"))
    _probing(command("probe", "measure what each algorithm would do on this model and task, and recommend one", "1"))
    subparser = command("compare", "compare algorithms on equal terms: over settings and seeds, with intervals and verdicts")
    subparser.add_argument("study", metavar="STUDY.toml", help="study file")
    subparser.add_argument("--dir", type=place, help="folder of the study (default: runs/NAME)")
    subparser.add_argument(
        "--only", default="*", metavar="PATTERN", help="cells to run, as setting/variant/seedN with * and ?"
    )
    subparser.add_argument("--dry-run", action="store_true", help="only list the cells")
    command("config", "print the whole configuration, with the meaning and unit of each field", "?")
    subparser = command(
        "plan", "predict what a run on [scale] ranks needs: memory, bytes and seconds, before it starts", "1"
    )
    for name, unit, text, default in (
        ("memory", "GIB", "memory of a rank: say whether the state fits, and exit with 1 where it does not", None),
        ("flops", "TFLOPS", "operations that a rank sustains, in TFLOP/s (default: %(default)g, 40 %% of an H100)", 400.0),
        ("bandwidth", "GB/S", "what a rank sends to other machines, in GB/s (default: %(default)g)", 40.0),
        ("local-bandwidth", "GB/S", "what it sends within its machine, in GB/s (default: %(default)g)", 400.0),
    ):
        subparser.add_argument(f"--{name}", type=positive, metavar=unit, help=text, default=default)
    for name, text, count in (
        ("machine", "ranks in a machine (default: %(default)d)", 8),
        ("prompt-tokens", "tokens of a prompt (default: %(default)d)", 512),
        ("completion-tokens", "tokens of a completion (default: rollout.max_completion_length)", None),
    ):
        subparser.add_argument(f"--{name}", type=natural, metavar="N", help=text, default=count)


def _reading(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that read what a run has left, and the demo."""
    subparser = command(
        "report", "write the report of a run with its figures, or one page that compares several runs", fields=False
    )
    subparser.add_argument(
        "runs", nargs="+", type=place, metavar="RUN_DIR", help="run folders; the page is written into the first"
    )
    subparser = command("export", "write the trained model of a run as a plain Hugging Face folder", fields=False)
    subparser.add_argument("run", type=place, metavar="RUN", help="run folder, checkpoint or model folder")
    subparser.add_argument("--out", type=place, metavar="DIR", help="where to (default: RUN/export)")
    subparser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")
    subparser.add_argument("--push", metavar="REPO", help="send it to this repository of the Hugging Face Hub too")
    subparser = command(
        "demo", "train a tiny mixture of experts with GSPO until it works answers out instead of guessing", fields=False
    )
    subparser.add_argument("--agent", action="store_true", help="run the demo of agents: conversations with a tool")
    subparser.add_argument("--dir", type=place, help="run folder (default: runs/demo, runs/demo-agent)")
    subparser.add_argument("--seed", type=seed, default=0, help="seed of the whole demo (default: %(default)s)")
    subparser.add_argument("--resume", action="store_true", help="continue a demo that was stopped")


def _probing(subparser: argparse.ArgumentParser) -> None:
    """The words of `gspo probe`."""
    subparser.add_argument(
        "--dir", type=place, default=Path("runs/probe"), help="folder of the probe (default: %(default)s)"
    )
    for name, text, count in (
        ("groups", "groups whose gradients are measured (default: %(default)d)", 32),
        ("fresh", "fresh groups at each age, for the gradient that is right (default: %(default)d)", 64),
        ("warm", "steps of training before the probe begins (default: %(default)d)", 2),
    ):
        subparser.add_argument(f"--{name}", type=natural, metavar="N", help=text, default=count)
    subparser.add_argument(
        "--ages", type=ages, default=(), metavar="0,1,3",
        help="updates since sampling at which is measured (default: 0, powers of 2, the run's last, and twice that)",
    )  # fmt: skip


def ages(text: str) -> tuple[int, ...]:
    """Ages on the command line. Raises ArgumentTypeError, which argparse shows."""
    words = text.split(",")
    numbers = tuple(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 7)
    if len(numbers) != len(words) or numbers[0] != 0 or list(numbers) != sorted(set(numbers)):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be numbers of updates that begin with 0 and grow, as 0,1,3")
    return numbers


OF_A_BENCHMARK = (
    "data", "name", "split", "release", "window", "preset", "url", "key_variable", "refused_as_wrong", "dir", "against",
    "contests", "as_published",
)  # fmt: skip
"""The words of `gspo eval` that are for a benchmark alone."""


def _evaluating(subparser: argparse.ArgumentParser) -> None:
    """The words of `gspo eval`."""
    subparser.add_argument(
        "config", metavar="CONFIG.toml|MODEL",
        help="configuration file; with --benchmark also a model's folder or id, or with --url its name there",
    )  # fmt: skip
    subparser.add_argument("--out", type=place, metavar="FILE", help="write each completion to this .jsonl file")
    group = subparser.add_argument_group("on a benchmark")
    for name, metavar, text in (
        (
            "benchmark",
            "NAME|FILE",
            "aime24, aime25, livecodebench, codeforces, humaneval, or a file of problems and answers",
        ),
        ("data", "SOURCE", "where its rows are: a file, or a data set's id (default: its own data set on the Hub)"),
        ("name", "NAME", "configuration of the data set, such as verifiable of open-r1/codeforces"),
        ("split", "NAME", "split of the data set (default: the benchmark's own)"),
        ("release", "NAME", "livecodebench: release of the data, v1 to v6 (default: v5)"),
        ("window", "FROM..TO", "livecodebench: months or days of the contests, such as 2024-10..2025-02"),
        ("preset", "NAME", "how to sample, by a model card: qwen3, qwen3-instruct"),
        ("url", "URL", "OpenAI-compatible endpoint that samples, such as http://127.0.0.1:8000/v1"),
        ("key-variable", "NAME", "environment variable with the endpoint's API key (default: OPENAI_API_KEY, if it is set)"),
    ):
        group.add_argument(f"--{name}", metavar=metavar, help=text, type=name_or_place)
    for name, metavar, text in (
        ("dir", "DIR", "folder of the evaluation; one that was stopped goes on (default: runs/eval/BENCHMARK-MODEL)"),
        ("against", "DIR", "compare with the finished evaluation in this folder, paired by problem"),
        ("contests", "FILE", "codeforces: standings and ratings of the contests, for a CodeElo-style rating"),
    ):
        group.add_argument(f"--{name}", metavar=metavar, type=place, help=text)
    group.add_argument(
        "--refused-as-wrong", action="store_true", help="count replies that the endpoint refuses to give as wrong (HTTP 4xx)"
    )
    group.add_argument(
        "--as-published", action="store_true", help="codeforces: CodeElo's published script, which is off by one place"
    )


def place(path: str) -> Path:
    """A path of the command line; shells leave the ~ of `--dir=~/runs` to programs."""
    return Path(name_or_place(path))


def name_or_place(word: str) -> str:
    """A word that may be a path. Raises ArgumentTypeError, which argparse shows."""
    try:
        return from_home("path", word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> float:
    """An amount on the command line. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a number above 0")
    return number


def natural(text: str) -> int:
    """A count on the command line. Raises ArgumentTypeError, which argparse shows."""
    if not text.isascii() or not text.isdigit() or not 0 < (number := int(text[:20])) <= 10**7:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 1 to {10**7}")
    return number


def seed(text: str) -> int:
    """A seed of the command line. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python reads
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}") from None
    if not 0 <= number <= SEEDS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}")
    return number


def take_fields(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--section.key VALUE` and `--section.key=VALUE` out of the words of a command line."""
    plain_words: list[str] = []
    fields: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        key, equals, value = word.partition("=")
        if not key.startswith("--") or "." not in key:
            plain_words.append(word)
            continue
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise ValueError(f"{key}: a value is missing (one that begins with -- is given as {key}=VALUE)")
        fields[key[2:]] = value
    return plain_words, fields


def refuse(word: str, command: str) -> NoReturn:
    """Raises ValueError for a word that the command does not know, with the field that was probably meant."""
    name, option = word.partition("=")[0], word.startswith("-")
    owners = ", ".join(f"`gspo {other}`" for other in owners_of(name))
    guess = nearest_key(name, "--") if option or name != word else ""
    what = "unknown option" if option else "unexpected argument"
    if owners:
        what += f": it is of {owners}"
    if guess or (option and not owners):
        what += "; fields are given as --section.key VALUE"
    raise ValueError(f"{name if option else word}: {what}{guess or f'; see `gspo {command} --help`'}")


def owners_of(option: str) -> list[str]:
    """The commands that have an option."""
    commands = next(action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [name for name, command in commands.items() if option in command._option_string_actions]


def check_typed(keys: Iterable[str], command: str) -> None:
    """Refuses fields of the command line that only `gspo train` reads. Raises ValueError with the key and the remedy."""
    for key in keys:
        if command == "eval" and key in OF_TRAINING:
            raise ValueError(f"--{key}: has no effect on `gspo eval`, which trains nothing: leave it out")
