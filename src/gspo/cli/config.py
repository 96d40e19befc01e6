"""`gspo config`: prints all settings of a run, with the meaning and unit of each."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from pathlib import Path

from gspo.cli.arguments import CONFIG_FILE, Command
from gspo.config.files import SECTIONS, load, to_toml
from gspo.config.local_model import local_copy
from gspo.config.names import nearest_key
from gspo.config.suggestions import nearest
from gspo.launch.processes import importing

logger = logging.getLogger(__name__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="CONFIG.toml|SECTION", nargs="*", help=f"{CONFIG_FILE}; sections to print alone")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    from gspo.config.algorithm import resolve
    from gspo.config.commands import warn_of_refusal

    chosen = [word for word in arguments.what if word in SECTIONS and not Path(word).is_file()]
    files = [word for word in arguments.what if word not in chosen]
    for word in sorted(files, key=lambda word: Path(word).is_file()):  # first what is none
        if len(files) > 1 or (not Path(word).is_file() and nearest(word, SECTIONS)):
            near = nearest_key(word, "--") if "=" in word else nearest(word, SECTIONS)
            raise ValueError(f"{word}: neither a section nor the only configuration file{near}")
    config = load(files[0] if files else None, fields)
    if config.model.path:
        warn_of_refusal(config)
    if (here := local_copy(config.model)) is not None:
        with importing():
            from gspo.assembly.early_checks import checked_prompts
        _, shown = checked_prompts(config, here, 1)
        if shown:
            logger.info(shown)
    config = dataclasses.replace(config, algorithm=resolve(config.algorithm)[1])
    print(to_toml(config, comments=True, secrets=True, sections=chosen or None), end="")
    return 0


CONFIG = Command("config", "print the whole configuration, with the meaning and unit of each field", _add_arguments, _run)
