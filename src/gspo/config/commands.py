"""What each command needs of a configuration, checked before anything heavy is imported."""

from __future__ import annotations

from gspo.config.algorithm import resolved
from gspo.config.checks import check_required, check_serving, check_training
from gspo.config.schema import Config
from gspo.config.unused import check_unused


def check_command(config: Config, command: str, resume: bool = False) -> None:
    """Raises ValueError, with the remedy, for settings with which a command cannot work, or which it would ignore.

    Args:
        config: Not resolved.
        command: "train", "sft", "serve" or "eval".
        resume: Whether a run goes on.
    """
    match command:
        case "train":
            check_training(config, resume)
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
