"""Checkpoints: atomic, complete, and enough to go on bit for bit."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

STATE = "state.pt"
MODEL = "model"
LEARNER = "learner.pt"
GOOD = "good"


def folder_of(checkpoints: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return checkpoints / f"step_{step:06d}"


def save(checkpoints: Path, step: int, write_learner: Callable[[Path], None], state: dict[str, Any], keep: int) -> Path:
    """Writes `checkpoints/step_NNNNNN` (what the learner writes, and state.pt) and deletes all but the newest `keep`.

    The folder appears under its name only when everything in it is on the disk.
    """
    final = folder_of(checkpoints, step)

    def write(folder: Path) -> None:
        write_learner(folder)
        torch.save(state | {"step": step, "random": random_state()}, folder / STATE)

    write_folder(final, write)
    for old in steps(checkpoints)[:-keep]:
        if old != good(checkpoints):
            remove(old)
    return final


def keep_good(checkpoints: Path, step: int) -> None:
    """Marks the checkpoint of `step` as the good one, which is not deleted while it is."""
    part = checkpoints / f".{GOOD}.part"
    part.write_text(f"{folder_of(checkpoints, step).name}\n", encoding="utf-8")
    part.replace(checkpoints / GOOD)


def good(checkpoints: Path) -> Path | None:
    """The checkpoint that was marked good last; None without one."""
    mark = checkpoints / GOOD
    folder = checkpoints / mark.read_text(encoding="utf-8").strip() if mark.exists() else None
    return folder if folder is not None and (folder / STATE).exists() else None


class SaveError(RuntimeError):
    """The disk did not take what was to be written."""


def write_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a folder that takes the name `final` in one move. One that was there is replaced, or stays where
    the disk does not take the new one. Raises SaveError then.
    """
    part = final.with_name(f".{final.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        write(part)
        for file in [p for p in part.rglob("*") if p.is_file()]:
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own words for a full disk
        shutil.rmtree(part, ignore_errors=True)
        free = shutil.disk_usage(final.parent).free / 2**30
        raise SaveError(f"{final} could not be written ({error}); {free:.1f} GiB are free there") from error
    if final.exists():
        remove(final)
    part.rename(final)
    directory = os.open(final.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def remove(folder: Path) -> None:
    """Takes the folder's name away before anything in it, so that a kill leaves no half of it under that name."""
    gone = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def steps(checkpoints: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(p for p in checkpoints.glob("step_*") if (p / STATE).exists())


def latest(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint."""
    return (steps(checkpoints) or [None])[-1]  # type: ignore[list-item]


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The state beside the model, and puts the random state back. Raises RuntimeError for a damaged file."""
    state = read_state(checkpoint)
    torch.set_rng_state(state["random"]["cpu"])
    if torch.cuda.device_count() == len(state["random"]["cuda"]) > 0:  # a run may go on on another machine
        torch.cuda.set_rng_state_all(state["random"]["cuda"])
    return state


def read_state(checkpoint: Path, name: str = STATE) -> dict[str, Any]:
    """A state beside the model. Raises RuntimeError for a damaged file."""
    try:
        return torch.load(checkpoint / name, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(
            f"{checkpoint / name} cannot be read ({error}): delete {checkpoint} to resume from the checkpoint before it"
        ) from error


def check_complete(checkpoint: Path) -> None:
    """Raises ValueError for a checkpoint that an earlier gspo has written, which kept the learner's state elsewhere."""
    if not (checkpoint / LEARNER).exists():
        raise ValueError(
            f"{checkpoint} has no {LEARNER}: it is of an earlier gspo and cannot be resumed. Start another run from its "
            f"model: model.path = {str(checkpoint / MODEL)!r}"
        )


def same_data(saved: str, now: str) -> None:
    """Raises ValueError where the prompts are not those that the run began with."""
    if saved != now:
        raise ValueError(
            "task: the prompts are not those that this run began with (another file, order or number of rows), so it cannot "
            "go on where it stopped. Put them back, or start another run from the checkpoint's model"
        )


def random_state() -> dict[str, Any]:
    """torch's random states. (Completions have generators of their own, seeded by step.)"""
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


class Stop:
    """Whether Ctrl-C or SIGTERM asked the run to end after this step."""

    asked = False


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[Stop]:
    """Turns the first Ctrl-C or SIGTERM into `Stop.asked`; a second one interrupts at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return

    def handle(number: int, frame: Any) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        with suppress(RuntimeError):  # the signal may have come in the middle of a write to the terminal
            note(f"{signal.Signals(number).name}: finishing this step, then saving; once more to stop at once")

    old = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
