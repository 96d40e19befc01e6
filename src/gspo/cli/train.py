"""`gspo train` and `gspo sft`: train from the first step, or resume from the last checkpoint."""

from __future__ import annotations

import argparse
import os
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from gspo.cli.arguments import CONFIG_FILE, Command
from gspo.cli.places import check_places, check_run_folder
from gspo.cli.recipes import fetch_model
from gspo.config.commands import check_command
from gspo.config.files import from_dict, load
from gspo.config.schema import Config
from gspo.distributed.environment import SETTINGS, rank_and_world_size
from gspo.launch.processes import importing
from gspo.runs.folder import folder_of, placed
from gspo.safe import visible

SHORT = {"model": "model.path", "data": "task.source", "reward": "reward.functions"}
"""Options that stand for fields, so that a run needs no file."""


def add_arguments(parser: argparse.ArgumentParser, short: Sequence[str] = tuple(SHORT)) -> None:
    """Adds the arguments that all training commands share, and the options `short`."""
    parser.add_argument("config", metavar="CONFIG.toml", nargs="?", help=f"{CONFIG_FILE}; it may be left out with --model")
    for name in short:
        parser.add_argument(f"--{name}", metavar=name.upper(), dest=SHORT[name], help=f"the same as --{SHORT[name]}")
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in the run folder")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="SECTION.KEY",
        help="with --resume: a setting that may differ from the run's own, such as optimizer.lr; repeatable",
    )


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """Trains. Returns 0 if the run finished, 1 if it collapsed, 130 if it was stopped."""
    config = prepared(configured(arguments, fields), arguments)
    status = take_part(config, arguments)
    if status is not None:
        return status
    with importing():
        from gspo import api
    call = api.train if arguments.command == "train" else api.sft
    result = call(config=config, resume=arguments.resume, allow=arguments.allow)
    report = result.folder / "report.html"
    with suppress(BrokenPipeError):  # nobody reads it; the status counts
        print(visible(f"model   {result.folder / 'model'}" if result.finished else f"stopped {result.folder}"))
        if report.is_file():
            print(visible(f"report  {report}"))
        if arguments.config is None:
            print(visible(f"settings {result.folder / 'config.toml'}"))
    return 0 if result.finished else 1 if result.collapsed else 130


def configured(arguments: argparse.Namespace, fields: dict[str, str]) -> Config:
    """The configuration of the file, if any, with --model, --data, --reward and the fields; in a rank, that of its launcher.
    Raises ValueError as `load`.
    """
    if settings := os.environ.get(SETTINGS):
        return from_dict(tomllib.loads(os.fsencode(settings).decode()))
    short = {key: value for key in SHORT.values() if (value := getattr(arguments, key, None)) is not None}
    for name, key in SHORT.items():
        if key in short and key in fields:
            raise ValueError(f"--{name} and --{key}: leave one of them out")
    if arguments.config is None and "model.path" not in short | fields:
        options = " ".join(f"--{name} {name.upper()}" for name, key in SHORT.items() if hasattr(arguments, key))
        raise ValueError(f"give a configuration file or recipe:NAME (`gspo recipes`), or {options}")
    return load(arguments.config, fields | short)


def prepared(config: Config, arguments: argparse.Namespace) -> Config:
    """`config`, checked for this command before anything heavy is imported, with its run folder."""
    check_command(config, arguments.command)
    fetch_model(config)
    if rank_and_world_size()[0]:  # the leader decides for all
        return config
    from gspo.launch import launch

    arguments.resume |= launch.begun_before(config)
    check_places(config, arguments.command, arguments.resume)
    config = placed(config, arguments.resume)
    arguments.folder = config.log.dir
    check_run_folder(config.log.dir, arguments.resume)
    return config


def take_part(config: Config, arguments: argparse.Namespace) -> int | None:
    """Starts the ranks, or is a follower rank, and returns the exit status; None in the leading process, which continues."""
    from gspo.launch import launch

    def follow(config: Config) -> None:
        with importing():
            from gspo.assembly import rank
        rank.follow(config.scale)

    return launch.take_part(config, arguments.words, follow)


def resume_hint(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    """How to continue: what `--resume` would do."""
    try:
        folder = Path(getattr(arguments, "folder", "") or folder_of(configured(arguments, fields).log.dir, True))
    except ValueError:  # the file changed in the meantime
        return ""
    if not (folder / "config.toml").exists():
        return " before anything was begun: start it again without --resume"
    from gspo.runs import checkpoint

    return f"; {checkpoint.resume_hint(folder / 'checkpoints')}"


TRAIN = Command(
    "train", "train a model with GSPO or another algorithm, such as GRPO or PPO", add_arguments, run, resume_hint=resume_hint
)
SFT = Command(
    "sft",
    "fine-tune a model on prompts with completions to imitate (supervised, for a cold start)",
    partial(add_arguments, short=("model", "data")),
    run,
    resume_hint=resume_hint,
)
