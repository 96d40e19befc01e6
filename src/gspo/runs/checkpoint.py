"""Checkpoints: atomic, complete, verified by checksums, and sufficient to resume bit for bit."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gspo.config.import_function import pick_device
from gspo.config.names import RESUME
from gspo.runs import disk
from gspo.runs.disk import SaveError
from gspo.runs.folder import RunFolder

logger = logging.getLogger(__name__)
STATE = "state.pt"
MODEL = "model"
LEARNER = "learner.pt"
CONFIG = "config.toml"
GOOD, BEST = "good", "best"  # marks, which protect a checkpoint from deletion: the guard's, and that of the best evaluation
NAMES = rf"step_\d+|{GOOD}|{BEST}"


def folder_of(checkpoints: Path, step: int) -> Path:
    """The path of a step's checkpoint."""
    return checkpoints / f"step_{step:06d}"


def save(
    checkpoints: Path,
    step: int,
    write_learner: Callable[[Path], None],
    state: dict[str, Any],
    config: str,
    keep: int,
    needed: bool = True,
) -> Path | None:
    """Writes `checkpoints/step_NNNNNN` and returns it, then deletes all but the newest `keep` and the marked ones. The
    folder appears under its name only once everything in it is on disk, checksums included.

    write_learner: writes the learner's files into a folder. state: saved as state.pt. config: the settings, as TOML. needed:
    whether to raise SaveError if the disk refuses the write; otherwise it is a warning, and None is returned.
    """
    final = folder_of(checkpoints, step)

    def write(folder: Path) -> None:
        write_learner(folder)
        # Completions have generators of their own, seeded by step.
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        random = {"threads": torch.get_num_threads(), "cpu": torch.get_rng_state(), "cuda": cuda}
        torch.save(state | {"step": step, "random": random}, folder / STATE)
        (folder / CONFIG).write_text(config, encoding="utf-8")
        disk.write_sums(folder)

    try:
        disk.write_folder(final, write)
    except SaveError as error:
        if needed:
            raise SaveError(f"{error}; {resume_hint(checkpoints)}") from error
        logger.warning(f"step {step}: {error}. The run goes on without this checkpoint; {resume_hint(checkpoints)}")
        return None
    disk.sweep(checkpoints, NAMES)
    protected = [marked(checkpoints, kind) for kind in (GOOD, BEST)]
    for old in steps(checkpoints)[:-keep]:
        if old not in protected:
            disk.remove(old)
    return final


def save_model(folder: RunFolder, write: Callable[[str], None], model: Any) -> None:
    """Lets `write` fill the run's `model/`, replacing an existing one, and notes it in `model`, whose weights are there now.
    Raises SaveError.
    """
    try:
        disk.write_folder(folder.path / MODEL, lambda path: write(str(path)))
    except SaveError as error:
        raise SaveError(f"{error}; {resume_hint(folder.checkpoints)}") from error
    model.gspo_folder = str((folder.path / MODEL).absolute())


def sweep(folder: RunFolder) -> None:
    """Cleans up what killed processes left in a run folder. This process must hold its lock."""
    disk.sweep(folder.path, rf"{MODEL}|{re.escape(CONFIG)}")
    disk.sweep(folder.checkpoints, NAMES)


def mark(checkpoints: Path, step: int, kind: str, needed: bool = True) -> None:
    """Marks the checkpoint of `step` as GOOD or BEST, which protects it from deletion. needed: as in `save`."""
    try:
        disk.write_text(checkpoints / kind, f"{folder_of(checkpoints, step).name}\n")
    except SaveError as error:
        if needed:
            raise
        logger.warning(f"step {step}: {error}")


def marked(checkpoints: Path, kind: str) -> Path | None:
    """The checkpoint with this mark; None without one."""
    file = checkpoints / kind
    name = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    return next((folder for folder in steps(checkpoints) if folder.name == name), None)


def steps(checkpoints: Path) -> list[Path]:
    """The checkpoints, oldest first. Folders with other names are ignored."""
    folders = [path for path in checkpoints.glob("step_*") if re.fullmatch(r"step_(\d{6}|[1-9]\d{6,})", path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step_")))


def latest(checkpoints: Path) -> Path | None:
    """The newest checkpoint; None without one."""
    return (steps(checkpoints) or [None])[-1]  # type: ignore[list-item]


def resume_hint(checkpoints: Path) -> str:
    """Describes what resuming the run would do."""
    last = latest(checkpoints)
    if last is not None:
        return f"{RESUME} goes on from the last checkpoint, {last.name}"
    return f"no checkpoint was saved yet: {RESUME} begins with the first step"


def check(checkpoint: Path) -> None:
    """Checks that a run can resume from it. Raises RuntimeError for a damaged or missing file."""
    problem = disk.damage(checkpoint) if (checkpoint / disk.SUMS).exists() else f"{checkpoint / disk.SUMS} is missing"
    if problem:
        raise RuntimeError(f"{problem}. {_remedy(checkpoint)}")


def _remedy(checkpoint: Path) -> str:
    """The remedy for a damaged checkpoint."""
    there = steps(checkpoint.parent)
    if earlier := there[: there.index(checkpoint)] if checkpoint in there else []:
        return f"Put it back, or delete {checkpoint}: {RESUME} then goes on from {earlier[-1].name}"
    return "There is no checkpoint before it: put it back, or start anew with another log.dir"


def load_state(checkpoint: Path) -> dict[str, Any]:
    """Returns the state beside the model and restores the random state. Raises RuntimeError for a damaged file."""
    state = read_state(checkpoint)
    if folder_of(checkpoint.parent, state["step"]) != checkpoint:
        raise RuntimeError(
            f"{checkpoint} holds step {state['step']}: give it its name {folder_of(Path(), state['step'])} back"
        )
    torch.set_rng_state(state["random"]["cpu"])
    if torch.cuda.device_count() == len(state["random"]["cuda"]) > 0:  # a run may resume on another machine
        torch.cuda.set_rng_state_all(state["random"]["cuda"])
    return state


def read_state(checkpoint: Path, name: str = STATE) -> dict[str, Any]:
    """Reads a state file beside the model. Raises RuntimeError for a damaged file."""
    try:
        return torch.load(checkpoint / name, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(f"{checkpoint / name} cannot be read ({error}). {_remedy(checkpoint)}") from error


def check_same_data(saved: str, now: str) -> None:
    """Raises ValueError if the prompts are not those that the run began with."""
    if saved != now:
        raise ValueError(
            "task: the prompts are not those that this run began with (another file, order or number of rows; with "
            'task.too_long = "leave_out" also another limit of tokens), so it cannot go on where it stopped. Put them back, '
            "or start another run from the checkpoint's model"
        )


def check_threads(state: dict[str, Any], device: str) -> None:
    """Warns if results on a CPU will be rounded differently than before, because torch has another number of threads."""
    before, now = state["random"]["threads"], torch.get_num_threads()
    if before != now and pick_device(device).type == "cpu":
        logger.warning(
            f"torch had {before} threads before and has {now} now: on a CPU results round differently from here on. For "
            f"those of an unbroken run, set OMP_NUM_THREADS={before}"
        )
