"""What the commands share: their type, the types of their options, and the fields of a configuration among the words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gspo.config.field import SEEDS
from gspo.config.files import from_home

FIELDS = "Set any configuration field with --section.key VALUE. `gspo config` lists all fields with meaning and unit."


def no_hint(arguments: argparse.Namespace, fields: Mapping[str, str]) -> str:
    """Nothing: an interrupted command of this kind is simply run again."""
    return ""


@dataclass(frozen=True)
class Command:
    """A command of `gspo`.

    Args:
        name: As it is typed.
        help: One line for `gspo --help`.
        add_arguments: Adds its options to its parser.
        run: Runs it, from the parsed arguments and the fields of a configuration, and returns the exit status.
        takes_fields: Whether `--section.key VALUE` means something to it.
        resume_hint: How to go on after an interruption, in words that follow "interrupted".
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, dict[str, str]], int]
    takes_fields: bool = True
    resume_hint: Callable[[argparse.Namespace, dict[str, str]], str] = no_hint


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, as all bad input is."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError that names the help to read."""
        raise ValueError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the configuration file."""
    parser.add_argument("config", metavar="CONFIG.toml", help="configuration file")


def add_counts(parser: argparse.ArgumentParser, counts: Iterable[tuple[str, str, int | None]]) -> None:
    """Adds options that take a count.

    Args:
        parser: The command's.
        counts: For each option its name, its help and its default.
    """
    for name, text, default in counts:
        parser.add_argument(f"--{name}", type=natural, metavar="N", help=text, default=default)


def path(word: str) -> Path:
    """A path. Shells leave the ~ of `--dir=~/runs` to programs."""
    return Path(path_or_name(word))


def path_or_name(word: str) -> str:
    """A word that may be a path. Raises ArgumentTypeError, which argparse shows."""
    try:
        return from_home("path", word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive(text: str) -> float:
    """A positive number. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a number above 0")
    return number


def natural(text: str) -> int:
    """A count. Raises ArgumentTypeError, which argparse shows."""
    if not text.isascii() or not text.isdigit() or not 0 < (number := int(text[:20])) <= 10**7:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 1 to {10**7}")
    return number


def seed(text: str) -> int:
    """A seed. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python reads
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}") from None
    if not 0 <= number <= SEEDS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}")
    return number


def take_fields(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Separates `--section.key VALUE` and `--section.key=VALUE` from the other words of a command line."""
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
