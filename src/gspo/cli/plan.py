"""`gspo plan`: what a run would need, before it starts."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import Command, add_config, add_counts, positive
from gspo.config.files import load
from gspo.launch.processes import importing
from gspo.safe import visible

AMOUNTS = (
    ("memory", "GIB", "memory of a rank: say whether the state fits, and exit with 1 where it does not", None),
    ("flops", "TFLOPS", "operations that a rank sustains, in TFLOP/s (default: %(default)g, 40 %% of an H100)", 400.0),
    ("bandwidth", "GB/S", "what a rank sends to other machines, in GB/s (default: %(default)g)", 40.0),
    ("local-bandwidth", "GB/S", "what it sends within its machine, in GB/s (default: %(default)g)", 400.0),
)
COUNTS = (
    ("machine", "ranks in a machine (default: %(default)d)", 8),
    ("prompt-tokens", "tokens of a prompt (default: %(default)d)", 512),
    ("completion-tokens", "tokens of a completion (default: rollout.max_completion_length)", None),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The configuration, the machine, and lengths."""
    add_config(parser)
    for name, unit, text, default in AMOUNTS:
        parser.add_argument(f"--{name}", type=positive, metavar=unit, help=text, default=default)
    add_counts(parser, COUNTS)


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """Prints what the run would need. Returns 1 where it does not fit the memory."""
    config = load(arguments.config, fields)
    with importing():
        from gspo.plan.cost_model import Machines
        from gspo.plan.plan import Lengths, told
    lengths = Lengths(arguments.prompt_tokens, arguments.completion_tokens)
    rates = arguments.flops * 1e12, arguments.bandwidth * 1e9, arguments.local_bandwidth * 1e9
    text, fits = told(config, lengths, Machines(*rates, arguments.machine), arguments.memory)
    print(visible(text))
    return 0 if fits else 1


PLAN = Command(
    "plan", "predict what a run on [scale] ranks needs: memory, bytes and seconds, before it starts", add_arguments, run
)
