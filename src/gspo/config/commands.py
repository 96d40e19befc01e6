"""Checks a configuration for each command, before anything heavy is imported."""

from __future__ import annotations

from gspo.config.algorithm import resolved
from gspo.config.checks import check_required, check_serving, check_training
from gspo.config.schema import Config
from gspo.config.unused import check_unused


def check_command(config: Config, command: str) -> None:
    """Raises ValueError, with a remedy, for settings that a command cannot work with or would ignore.

    Args:
        config: The unresolved configuration.
        command: "train", "sft", "serve" or "eval".
    """
    match command:
        case "train":
            check_training(config)
            resolved(config)
        case "serve":
            check_serving(config)
            resolved(config, samples=False)
        case "sft":
            check_required(config)
            check_unused(config, "sft", filled=resolved(Config())[0])
        case "eval":
            check_required(config)
            check_unused(config, "eval")
