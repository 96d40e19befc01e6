"""`gspo report`: writes the page of one or more runs."""

from __future__ import annotations

import argparse
import logging

from gspo.cli.arguments import Command, path
from gspo.safe import visible

logger = logging.getLogger(__name__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=path, metavar="RUN_DIR", help="run folders; the first gets the page")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    logger.info(f"reading {', '.join(map(str, arguments.runs))}")
    from gspo.report.page import write_report

    print(visible(write_report(arguments.runs)))
    return 0


REPORT = Command(
    "report",
    "write the report of a run with its figures, or one page that compares several runs",
    _add_arguments,
    _run,
    takes_fields=False,
)
