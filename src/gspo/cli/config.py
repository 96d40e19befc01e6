"""`gspo config`: prints all settings of a run, with the meaning and unit of each."""

from __future__ import annotations

import argparse
import dataclasses
import logging

from gspo.cli.arguments import Command
from gspo.config.files import load, to_toml
from gspo.config.local_model import local_copy
from gspo.launch.processes import importing

logger = logging.getLogger(__name__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG.toml", nargs="?", help="configuration file")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    from gspo.config.algorithm import resolve
    from gspo.config.checks import check_queries
    from gspo.config.needs import readable, warn_of_needs
    from gspo.data.splits import check_sources

    config = load(arguments.config, fields)
    check_queries(config)
    warn_of_needs(config)
    if readable(config):
        check_sources(config.task, config.stage, config.refresh)
    if (here := local_copy(config.model)) is not None:
        with importing():
            from gspo.assembly.early_checks import checked_prompts
        _, shown = checked_prompts(config, here, 1)
        if shown:
            logger.info(shown)
    print(to_toml(dataclasses.replace(config, algorithm=resolve(config.algorithm)[1]), comments=True, secrets=True), end="")
    return 0


CONFIG = Command("config", "print the whole configuration, with the meaning and unit of each field", _add_arguments, _run)
