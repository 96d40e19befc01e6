"""`gspo demo`: trains a tiny mixture of experts from scratch."""

from __future__ import annotations

import argparse
from pathlib import Path

from gspo.cli.arguments import Command, path, seed
from gspo.launch.processes import importing


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", action="store_true", help="run the demo of agents: conversations with a tool")
    parser.add_argument("--dir", type=path, help="run folder (default: runs/demo, runs/demo-agent)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the whole demo (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="continue a demo that was stopped")


def _folder_of(arguments: argparse.Namespace) -> Path:
    return Path(arguments.dir or ("runs/demo-agent" if arguments.agent else "runs/demo"))


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    with importing():
        from gspo.demo import stages
    kind = "agent" if arguments.agent else "completion"
    return stages.run_demo(_folder_of(arguments), arguments.seed, arguments.resume, kind)


def _resume_hint(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    folder = _folder_of(arguments)
    begun = folder.with_name(f"{folder.name}-cold-start").exists()
    return f"; start it again {'with' if begun else 'without'} --resume"


DEMO = Command(
    "demo",
    "train a tiny mixture of experts with GSPO until it works answers out instead of guessing",
    _add_arguments,
    _run,
    takes_fields=False,
    resume_hint=_resume_hint,
)
