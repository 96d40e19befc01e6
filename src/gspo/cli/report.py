"""`gspo report`: writes the page of one or more runs."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import Command, path
from gspo.safe import visible


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the run folders."""
    parser.add_argument(
        "runs", nargs="+", type=path, metavar="RUN_DIR", help="run folders; the page is written into the first"
    )


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """Writes the page and prints its path."""
    from gspo.report.page import write_report

    print(visible(write_report(arguments.runs)))
    return 0


REPORT = Command(
    "report",
    "write the report of a run with its figures, or one page that compares several runs",
    add_arguments,
    run,
    takes_fields=False,
)
