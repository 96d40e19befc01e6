"""All commands, and the parser for them."""

from __future__ import annotations

import argparse
from typing import NoReturn

from gspo import __version__
from gspo.cli import compare, config, demo, evaluate, export, plan, recipes, report, serve, train, watch
from gspo.cli.arguments import FIELDS, Command, Parser
from gspo.cli.completion import Install
from gspo.config.names import nearest_key

COMMANDS = (
    train.TRAIN, train.SFT, serve.SERVE, evaluate.EVAL, compare.COMPARE, config.CONFIG, plan.PLAN, report.REPORT,
    watch.WATCH, export.EXPORT, recipes.RECIPES, demo.DEMO,
)  # fmt: skip
COMMON = {
    "debug": "show the full traceback of an error",
    "verbose": "also show debug messages, such as which attention was chosen",
    "quiet": "show only results, warnings and errors",
}
"""Options of every command."""


def parser() -> Parser:
    """The parser with all commands and their options."""
    top = Parser(
        prog="gspo",
        description="Train language models with Group Sequence Policy Optimization (GSPO).",
        epilog="Start with `gspo demo`: it trains SmolLM2-135M in a few minutes on two CPU cores.",
    )
    top.add_argument("--version", action="version", version=f"gspo {__version__}")
    top.add_argument("--install-completion", action=Install, nargs=0, help="install completion for bash and zsh, and exit")
    for name, text in COMMON.items():
        top.add_argument(f"--{name}", action="store_true", help=text)
    subparsers = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.help.replace("%", "%%"),  # argparse %-formats only this one
            description=command.help,
            epilog=FIELDS if command.takes_fields else None,
            allow_abbrev=False,
        )
        for name in COMMON:
            subparser.add_argument(f"--{name}", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_arguments(subparser)
    return top


def parse(words: list[str], fields: dict[str, str]) -> tuple[Command, argparse.Namespace]:
    """The command and its arguments. Raises ValueError for unknown words, with the nearest known one."""
    arguments, unknown = parser().parse_known_args(words)
    if unknown:
        reject_unknown(unknown[0], arguments.command)
    if arguments.quiet and arguments.verbose:
        raise ValueError("--quiet and --verbose: leave one of them out")
    command = next(command for command in COMMANDS if command.name == arguments.command)
    if fields and not command.takes_fields:
        raise ValueError(f"--{next(iter(fields))}: `gspo {command.name}` takes no configuration fields")
    return command, arguments


def reject_unknown(word: str, command: str) -> NoReturn:
    """Raises ValueError for a word that the command does not know, with the nearest field."""
    name, option = word.partition("=")[0], word.startswith("-")
    owners = ", ".join(f"`gspo {other}`" for other in commands_with(name))
    field = train.SHORT.get(name.removeprefix("--")) if command == "eval" and option else None
    guess = f", such as --{field}" if field else nearest_key(name, "--") if option or name != word else ""
    if name == "--config":
        guess = f", and the file without a name: `gspo {command} FILE.toml`"
    takes_fields = next(known.takes_fields for known in COMMANDS if known.name == command)
    guess = guess if takes_fields else ""
    what = "unknown option" if option else "unexpected argument"
    if owners:
        what += f": it is of {owners}"
    if guess or (option and not owners and takes_fields):
        what += "; fields are given as --section.key VALUE"
    raise ValueError(f"{name if option else word}: {what}{guess or f'; see `gspo {command} --help`'}")


def commands_with(option: str) -> list[str]:
    """The commands that have this option."""
    commands = next(action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [name for name, command in commands.items() if option in command._option_string_actions]
