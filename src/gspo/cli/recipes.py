"""`gspo recipes`: lists the settings that have names, and fetches the model that most of them train."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from gspo.cli.arguments import Command
from gspo.config.files import from_home
from gspo.config.recipes import FOLDER, recipes
from gspo.config.schema import Config
from gspo.launch.processes import importing

logger = logging.getLogger(__name__)
MODEL = "~/.cache/gspo/models/SmolLM2-135M-Instruct"


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    files = recipes()
    for name, file in files.items():
        what, ran = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
        print(f"{name:<{max(map(len, files))}}  {ran:<8}  {what}")
    logger.info(f"`gspo train recipe:NAME` runs one; the files are in {FOLDER}, to copy")
    return 0


def fetch_model(config: Config) -> None:
    """Downloads and converts the recipes' SmolLM2 if `config` names it and it is not there. Raises RuntimeError."""
    place = Path(from_home("model.path", MODEL))
    if config.model.path == str(place) and not place.exists():
        with importing():
            from gspo.demo import smollm2
        smollm2.fetch_smollm2(logger.info, place)


RECIPES = Command(
    "recipes",
    "list the recipes, settings that come with gspo: `gspo train recipe:NAME`",
    lambda parser: None,
    _run,
    takes_fields=False,
)
