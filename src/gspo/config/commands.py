"""Checks a configuration for each command, before anything heavy is imported."""

from __future__ import annotations

import logging

from gspo.config.algorithm import resolved
from gspo.config.checks import check_queries, check_required
from gspo.config.conflicts import ENGINE, ENVIRONMENT, LEARN, SERVE, TRAIN, check_conflicts
from gspo.config.engines import ENGINES, engine_function
from gspo.config.needs import check_needs
from gspo.config.schema import Config
from gspo.config.unused import check_unused

logger = logging.getLogger(__name__)


def warn_of_refusal(config: Config) -> None:
    """Warns, where no run is started, of what `gspo train` would refuse, unless another command that trains accepts it."""
    for command in ("serve", "sft", "train"):
        try:
            return check_command(config, command)
        except ValueError as error:
            why = f"here the run would be refused: {error}"
    logger.warning(why)


def check_command(config: Config, command: str) -> None:
    """Raises ValueError, with a remedy, for settings that a command ("train", "sft", "serve" or "eval") cannot work with or
    would ignore, and for packages that it lacks. `config` is not resolved yet.
    """
    check_required(config, *(["model.path"] if command == "serve" else []))
    check_conflicts(config, {"train": TRAIN, "serve": SERVE, "sft": (), "eval": ENGINE + ENVIRONMENT}[command])
    if command == "train":
        check_queries(config)
    if command != "sft" and config.sampler.engine not in ENGINES:
        engine_function(config.sampler)
    check_unused(config, command, filled=resolved(Config())[0] if command == "sft" else None)
    if command != "eval":
        check_conflicts(config, LEARN)
    if command in ("train", "serve"):
        resolved(config, samples=command == "train")
    check_needs(config, command)
