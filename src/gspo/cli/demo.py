"""`gspo demo`: trains a small pretrained model, or a tiny mixture of experts from scratch."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from gspo.cli.arguments import Command, path, seed
from gspo.config.needs import check_package
from gspo.launch.processes import importing

logger = logging.getLogger(__name__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group()
    text = "train a tiny mixture of experts from random weights instead: works answers out instead of guessing"
    kinds.add_argument("--moe", action="store_const", const="moe", dest="kind", help=text)
    text = "train an agent: a tiny mixture of experts, conversations with a tool"
    kinds.add_argument("--agent", action="store_const", const="agent", dest="kind", help=text)
    parser.set_defaults(kind="sums")
    parser.add_argument("--dir", type=path, help="run folder (default: runs/demo, runs/demo-moe, runs/demo-agent)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the whole demo (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue a demo that was stopped")


def _folder_of(arguments: argparse.Namespace) -> Path:
    return Path(arguments.dir or ("runs/demo" if arguments.kind == "sums" else f"runs/demo-{arguments.kind}"))


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    def run_kind(kind: str) -> int:
        if kind == "moe":
            check_package("`gspo demo --moe`", "reasoning_gym")
        with importing():
            from gspo.demo import stages
        arguments.kind = kind
        return stages.run_demo(_folder_of(arguments), arguments.seed, arguments.resume, kind)

    try:
        return run_kind(arguments.kind)
    except RuntimeError as error:
        if type(error).__name__ != "Unavailable":  # of gspo.demo.smollm2, whose import takes torch
            raise
        logger.warning("%s; the demo trains a tiny mixture of experts instead (gspo demo --moe)", error)
        return run_kind("moe")


def _resume_hint(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    folder = _folder_of(arguments)
    begun = folder if arguments.kind == "sums" else folder.with_name(f"{folder.name}-cold-start")
    if not begun.exists():
        return "; start it again without --resume"
    # Named also where it was not given: for lack of a network the demo may have become this one.
    return f"; start it again with {'' if arguments.kind == 'sums' else f'--{arguments.kind} '}--resume"


DEMO = Command(
    "demo",
    "train SmolLM2-135M with GSPO until it answers sums in words: a few minutes on two CPU cores",
    _add_arguments,
    _run,
    takes_fields=False,
    resume_hint=_resume_hint,
)
