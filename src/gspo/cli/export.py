"""`gspo export`: writes the trained model as a folder that other programs can load."""

from __future__ import annotations

import argparse

from gspo.cli.arguments import Command, path
from gspo.config.needs import check_package
from gspo.launch.processes import importing


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help="run folder, checkpoint or model folder")
    parser.add_argument("--out", type=path, metavar="DIR", help="where to (default: RUN/export)")
    parser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")
    parser.add_argument("--push", metavar="REPO", help="send it to this repository of the Hugging Face Hub too")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    if arguments.merge:
        check_package("--merge", "peft")
    with importing():
        from gspo.assembly.export import export

    print(f"model   {export(arguments.run, arguments.out, arguments.merge, arguments.push)}")
    return 0


EXPORT = Command(
    "export", "write the trained model of a run as a plain Hugging Face folder", _add_arguments, _run, takes_fields=False
)
