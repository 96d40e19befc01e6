"""`gspo plan`: predicts what a run needs, before it starts."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import Command, add_config, add_counts, positive
from gspo.config.files import load
from gspo.launch.processes import importing
from gspo.safe import visible

COUNTS = (
    ("prompt-tokens", "tokens of a prompt (default: %(default)d)", 512),
    ("completion-tokens", "tokens of a completion (default: rollout.max_completion_length)", None),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the configuration, the memory of a rank, and the lengths of prompts and completions."""
    add_config(parser)
    parser.add_argument(
        "--memory",
        type=positive,
        metavar="GIB",
        help="memory of a rank: say whether the state fits, and exit with 1 where it does not",
    )
    add_counts(parser, COUNTS)


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """Prints what the run would need. Returns 1 if that exceeds the memory."""
    config = load(arguments.config, fields)
    with importing():
        from gspo.plan.plan import Lengths, render
    lengths = Lengths(arguments.prompt_tokens, arguments.completion_tokens)
    text, fits = render(config, lengths, arguments.memory)
    print(visible(text))
    return 0 if fits else 1


PLAN = Command(
    "plan", "predict what a run needs before it starts: memory, and the bytes that its ranks send", add_arguments, run
)
