"""Checkpoints: atomic, complete, proven to be what was saved, and enough to go on bit for bit."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from gspo.config.import_function import pick_device
from gspo.config.names import RESUME
from gspo.runs import disk
from gspo.runs.disk import SaveError
from gspo.runs.folder import RunFolder

STATE = "state.pt"
MODEL = "model"
LEARNER = "learner.pt"
CONFIG = "config.toml"
GOOD = "good"
NAMES = rf"step_\d+|{GOOD}"


def folder_of(checkpoints: Path, step: int) -> Path:
    """The checkpoint of a step."""
    return checkpoints / f"step_{step:06d}"


def save(
    checkpoints: Path,
    step: int,
    write_learner: Callable[[Path], None],
    state: dict[str, Any],
    config: str,
    keep: int,
    tell: Callable[[str], None] | None = None,
) -> Path | None:
    """Writes `checkpoints/step_NNNNNN` (what the learner writes, state.pt, the settings `config`, and checksums of all of
    it) and deletes all but the newest `keep`.

    The folder appears under its name only when everything in it is on the disk. Where the disk does not take it, raises
    SaveError; with `tell`, for a run that need not end now, it is told so, and nothing is returned.
    """
    final = folder_of(checkpoints, step)

    def write(folder: Path) -> None:
        write_learner(folder)
        torch.save(state | {"step": step, "random": random_state()}, folder / STATE)
        (folder / CONFIG).write_text(config, encoding="utf-8")
        disk.write_sums(folder)

    try:
        disk.write_folder(final, write)
    except SaveError as error:
        if tell is None:
            raise SaveError(f"{error}; {resume_hint(checkpoints)}") from error
        tell(f"step {step}: {error}. The run goes on without this checkpoint; {resume_hint(checkpoints)}")
        return None
    disk.sweep(checkpoints, NAMES)
    for old in steps(checkpoints)[:-keep]:
        if old != good(checkpoints):
            disk.remove(old)
    return final


def save_model(folder: RunFolder, write: Callable[[str], None]) -> None:
    """Lets `write` fill the run's `model/`, in the place of one that is there. Raises SaveError."""
    try:
        disk.write_folder(folder.path / MODEL, lambda path: write(str(path)))
    except SaveError as error:
        raise SaveError(f"{error}; {resume_hint(folder.checkpoints)}") from error


def sweep(folder: RunFolder) -> None:
    """Clears up what kills have left in a run folder that this process holds."""
    disk.sweep(folder.path, rf"{MODEL}|{re.escape(CONFIG)}")
    disk.sweep(folder.checkpoints, NAMES)


def keep_good(checkpoints: Path, step: int, tell: Callable[[str], None] | None = None) -> None:
    """Marks the checkpoint of `step` as the good one, which is not deleted while it is. `tell` hears of a disk that does not
    take it; without it, raises SaveError.
    """
    try:
        disk.write_text(checkpoints / GOOD, f"{folder_of(checkpoints, step).name}\n")
    except disk.SaveError as error:
        if tell is None:
            raise
        tell(f"step {step}: {error}")


def good(checkpoints: Path) -> Path | None:
    """The checkpoint that was marked good last; None without one."""
    mark = checkpoints / GOOD
    name = mark.read_text(encoding="utf-8", errors="replace").strip() if mark.is_file() else ""
    return next((folder for folder in steps(checkpoints) if folder.name == name), None)


def steps(checkpoints: Path) -> list[Path]:
    """The complete checkpoints, oldest first. What has another name is none."""
    numbers = sorted(int(path.name[5:]) for path in checkpoints.glob("step_*") if path.name[5:].isdecimal())
    folders = [folder_of(checkpoints, number) for number in dict.fromkeys(numbers)]
    return [folder for folder in folders if (folder / STATE).exists() or (folder / disk.SUMS).exists()]


def latest(checkpoints: Path) -> Path | None:
    """The newest complete checkpoint."""
    return (steps(checkpoints) or [None])[-1]  # type: ignore[list-item]


def resume_hint(checkpoints: Path) -> str:
    """What resuming the run would do, in words."""
    last = latest(checkpoints)
    if last is not None:
        return f"{RESUME} goes on from the last checkpoint, {last.name}"
    return f"no checkpoint was saved yet: {RESUME} begins with the first step"


def check(checkpoint: Path) -> None:
    """Whether a run can go on from it. Raises RuntimeError for a damaged file, ValueError for a checkpoint that an earlier
    gspo has written, which kept the learner's state elsewhere.
    """
    if problem := disk.damage(checkpoint):
        raise RuntimeError(f"{problem}. {_instead(checkpoint)}")
    if not (checkpoint / LEARNER).exists():
        raise _earlier(checkpoint, LEARNER)


def same_source(checkpoint: Path, source: dict[str, Any]) -> None:
    """Raises ValueError where the state of a rollout source is of an earlier gspo, which knew no stages. A served run's is
    empty.
    """
    if source and "prompts" not in source:
        raise _earlier(checkpoint, "state of the prompts")


def _earlier(checkpoint: Path, lacks: str) -> ValueError:
    return ValueError(
        f"{checkpoint} has no {lacks}: it is of an earlier gspo and cannot be resumed. Start another run from its "
        f"model: model.path = {str(checkpoint / MODEL)!r}"
    )


def _instead(checkpoint: Path) -> str:
    """What to do with a damaged checkpoint."""
    there = steps(checkpoint.parent)
    if earlier := there[: there.index(checkpoint)] if checkpoint in there else []:
        return f"Put it back, or delete {checkpoint}: {RESUME} then goes on from {earlier[-1].name}"
    return "There is no checkpoint before it: put it back, or start anew with another log.dir"


def load_state(checkpoint: Path) -> dict[str, Any]:
    """The state beside the model, and puts the random state back. Raises RuntimeError for a damaged file."""
    state = read_state(checkpoint)
    if folder_of(checkpoint.parent, state["step"]) != checkpoint:
        raise RuntimeError(
            f"{checkpoint} holds step {state['step']}: give it its name {folder_of(Path(), state['step'])} back"
        )
    torch.set_rng_state(state["random"]["cpu"])
    if torch.cuda.device_count() == len(state["random"]["cuda"]) > 0:  # a run may go on on another machine
        torch.cuda.set_rng_state_all(state["random"]["cuda"])
    return state


def read_state(checkpoint: Path, name: str = STATE) -> dict[str, Any]:
    """A state beside the model. Raises RuntimeError for a damaged file."""
    try:
        return torch.load(checkpoint / name, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(f"{checkpoint / name} cannot be read ({error}). {_instead(checkpoint)}") from error


def same_data(saved: str, now: str) -> None:
    """Raises ValueError where the prompts are not those that the run began with."""
    if saved != now:
        raise ValueError(
            "task: the prompts are not those that this run began with (another file, order or number of rows), so it cannot "
            "go on where it stopped. Put them back, or start another run from the checkpoint's model"
        )


def tell_threads(state: dict[str, Any], device: str, tell: Callable[[str], None]) -> None:
    """Warns where results on a CPU will round otherwise than before, since torch has more or fewer threads."""
    before, now = state["random"].get("threads", 0), torch.get_num_threads()
    if before not in (0, now) and pick_device(device).type == "cpu":
        tell(
            f"torch had {before} threads before and has {now} now: on a CPU numbers round otherwise from here on. For those "
            f"of an unbroken run, set OMP_NUM_THREADS={before}"
        )


def random_state() -> dict[str, Any]:
    """torch's random states, and its threads. (Completions have generators of their own, seeded by step.)"""
    return {
        "threads": torch.get_num_threads(),
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


class Stop:
    """Whether Ctrl-C, SIGTERM or a closed terminal asked the run to end after this step."""

    asked = False


@contextmanager
def stop_signals(note: Callable[[str], None]) -> Iterator[Stop]:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into `Stop.asked`; a second Ctrl-C or SIGTERM interrupts at once. SIGHUP
    stays ignored where it is (nohup).
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield stop
        return

    def handle(number: int, frame: Any) -> None:
        if stop.asked and number == signal.SIGHUP:  # the kernel and the shell may each send one
            return
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        with suppress(RuntimeError):  # the signal may have come in the middle of a write to the terminal
            note(f"{signal.Signals(number).name}: finishing this step, then saving; once more to stop at once")

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    old = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
