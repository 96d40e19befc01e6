"""Runs the cells of a study concurrently, each in its own process. Finished cells are not run again."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gspo.compare.spec import Cell
from gspo.config.files import load_of_run, to_toml
from gspo.config.resume import changed, may_differ
from gspo.report.read import read_lines
from gspo.safe import replace_file

logger = logging.getLogger(__name__)
OF_ITS_NUMBERS = ("eval.", "guard.")  # a resumed run may change these, but the numbers of a cell depend on them


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: "done", "failed" or "stopped", why, and its seconds."""

    cell: Cell
    status: str
    reason: str
    seconds: float


def finished(cell: Cell) -> bool:
    """Whether the cell's run is complete. Raises ValueError if its folder holds another configuration or more steps."""
    folder = Path(cell.config.log.dir)
    if not (folder / "config.toml").exists():
        return False
    remedy = "Delete the folder, or choose another --dir"
    begun = load_of_run(folder / "config.toml", remedy)
    for key, was, is_now in changed(begun, cell.config):
        rates = key == "train.steps" and cell.config.optimizer.schedule != "constant"  # would be those of two runs
        if not may_differ(key) or key.startswith(OF_ITS_NUMBERS) or rates:
            raise ValueError(
                f"{folder}: holds a cell of another study: {key} = {was!r} there, {is_now!r} in this one. {remedy}"
            )
    done = max((line.get("step", 0) for line in read_lines(folder / "metrics.jsonl")), default=0)
    if done > (steps := cell.config.train.steps):
        raise ValueError(f"{folder}: holds a cell of {done} steps, more than train.steps = {steps}. {remedy}")
    failed = has_event(cell, "error")  # so the last evaluation may be missing. A resumed run removes the event
    return (done == steps and not failed) or has_event(cell, "collapse")


def has_event(cell: Cell, kind: str) -> bool:
    """Whether the cell's run has an event of this kind: "error" if it failed; "collapse" if the guard stopped it, which
    completes it: resumed, it would be stopped again.
    """
    return any(event.get("kind") == kind for event in read_lines(Path(cell.config.log.dir) / "events.jsonl"))


class Running:
    """The process of a cell. Its output goes to a .txt file beside the run's folder, with the same name."""

    def __init__(self, cell: Cell, threads: int) -> None:
        self.cell, self.begin = cell, time.monotonic()
        folder = Path(cell.config.log.dir)
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f"{folder.name}.toml")
        replace_file(file, to_toml(cell.config, secrets=True).encode(), mode=0o600)  # the run needs the secrets
        self.log = folder.with_name(f"{folder.name}.txt")
        # -P: a random.py in the current folder must not shadow Python's. Rewards there are still found.
        command = [sys.executable, "-P", "-m", "gspo.compare.cell", str(os.getpid()), "train", str(file)]
        command += ["--resume"] if (folder / "config.toml").exists() else []
        cores = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.log.unlink(missing_ok=True)  # it may be a symlink
        with open(self.log, "w", encoding="utf-8") as output:
            # Its own session, so that Ctrl-C reaches it only once, through `run_cells`.
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | cores,
            )  # fmt: skip

    def outcome(self) -> CellOutcome | None:
        """The outcome of the cell; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        seconds = time.monotonic() - self.begin
        if status == 0 or has_event(self.cell, "collapse"):
            return CellOutcome(self.cell, "done", "", seconds)
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = next((line for line in reversed(lines) if "error:" in line.lower()), lines[-1] if lines else "")
        reason = reason.removeprefix("gspo: error: ")
        return CellOutcome(self.cell, "stopped" if status == 130 else "failed", reason or f"exit status {status}", seconds)

    def kill(self) -> None:
        """Kills the process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run_cells(
    cells: Sequence[Cell], workers: int, threads: int, on_end: Callable[[CellOutcome, int], None]
) -> list[CellOutcome]:
    """Runs cells, `workers` at once with so many threads each, and returns their outcomes. A failed cell does not stop the
    others. `on_end(outcome, remaining)` is called when a cell ends.

    If an error or Ctrl-C ends the call early, the running cells finish their step and save first; a second one kills them.
    """
    waiting, outcomes = list(cells), []
    running: list[Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(Running(waiting.pop(0), threads))
            time.sleep(0.1)
            for run in list(running):
                outcome = run.outcome()
                if outcome is not None:
                    running.remove(run)
                    outcomes.append(outcome)
                    on_end(outcome, len(waiting) + len(running))
    except BaseException:
        for run in running:
            run.process.send_signal(signal.SIGTERM)  # finishes its step and saves
        if running:
            logger.warning("the running cells finish their step and save; Ctrl-C again kills them")
        while any(run.process.poll() is None for run in running):
            time.sleep(0.1)
        raise
    finally:
        for run in running:
            run.kill()
    return outcomes
