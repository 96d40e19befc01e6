"""`gspo compare`: compares algorithms on equal terms."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import Command, path
from gspo.config.recipes import file_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", metavar="STUDY.toml", help="study file, or recipe:NAME")
    parser.add_argument("--dir", type=path, help="folder of the study (default: runs/NAME)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cells to run, as setting/variant/seedN with * and ?")
    parser.add_argument("--dry-run", action="store_true", help="only list the cells")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    from gspo.compare.compare import compare

    return compare(file_of(arguments.study), arguments.dir, arguments.only, arguments.dry_run, fields)


def _resume_hint(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    return "; the same command goes on with what is left"


COMPARE = Command(
    "compare",
    "compare algorithms on equal terms: over settings and seeds, with intervals and verdicts",
    _add_arguments,
    _run,
    resume_hint=_resume_hint,
)
