"""`gspo plan`: predicts what a run needs, before it starts."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import CONFIG_FILE, Command, natural, positive
from gspo.cli.recipes import fetch_model
from gspo.config.commands import warn_of_refusal
from gspo.config.files import load
from gspo.config.needs import check_needs
from gspo.launch.processes import importing
from gspo.safe import visible


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG.toml", help=CONFIG_FILE)
    text = "memory of a GPU or rank: say whether the state fits, and exit with 1 if not (default without a GPU: this CPU's)"
    parser.add_argument("--memory", type=positive, metavar="GIB", help=text)
    text = "tokens of a prompt (default: the longest of the first 100, if model and task are on this machine; else 512)"
    parser.add_argument("--prompt-tokens", type=natural, metavar="N", help=text)
    text = "tokens of a completion (default: rollout.max_completion_length)"
    parser.add_argument("--completion-tokens", type=natural, metavar="N", help=text)


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    config = load(arguments.config, fields)
    check_needs(config, "plan")
    warn_of_refusal(config)
    fetch_model(config)
    with importing():
        from gspo.plan.plan import render
        from gspo.plan.work import lengths_of
    lengths = lengths_of(config, arguments.prompt_tokens, arguments.completion_tokens)
    text, fits = render(config, lengths, arguments.memory)
    print(visible(text))
    return 0 if fits else 1


PLAN = Command(
    "plan",
    "predict what a run needs before it starts: memory, bytes that its ranks send, and on a CPU seconds",
    _add_arguments,
    _run,
)
