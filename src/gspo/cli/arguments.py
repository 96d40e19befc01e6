"""What the commands share: the type of a command, types of options, and configuration fields on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gspo.config.field import SEEDS
from gspo.config.files import from_home
from gspo.config.suggestions import nearest

CONFIG_FILE = "configuration file, or recipe:NAME (`gspo recipes` lists them)"
FIELDS = "Set any configuration field with --section.key VALUE. `gspo config` lists all fields with meaning and unit."


@dataclass(frozen=True)
class Command:
    """A command of `gspo`. `run` gets the parsed arguments and the configuration fields, and returns the exit status.
    `resume_hint` says how to continue, as text that follows "interrupted".
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, dict[str, str]], int]
    takes_fields: bool = True
    resume_hint: Callable[[argparse.Namespace, dict[str, str]], str] = lambda arguments, fields: ""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors as ValueError, like all bad input."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError with a pointer to `--help`, and the nearest choice for a word that is none."""
        hint = ""
        if found := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            hint = nearest(found[1], re.findall(r"'([^']*)'", found[2]))
        raise ValueError(f"{message.removeprefix('argument ')}{hint}; see `{self.prog} --help`")


def path(word: str) -> Path:
    """A path, with ~ expanded: shells leave the ~ of `--dir=~/runs` to programs."""
    return Path(path_or_name(word))


def path_or_name(word: str) -> str:
    """A path with ~ expanded, or a name. Raises ArgumentTypeError, which argparse shows."""
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


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        with suppress(ValueError):  # also for more digits than Python parses
            if least <= (number := int(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from {least} to {most}")

    return parse


natural, seed, port = _whole(1, 10**7), _whole(0, SEEDS), _whole(1, 65535)
"""A count, a seed, and a port. Raise ArgumentTypeError, which argparse shows."""


def take_fields(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Separates the fields `--section.key VALUE` and `--section.key=VALUE` from the other words of a command line."""
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
