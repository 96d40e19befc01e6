"""Runs the cells of a study, several at once, each in a process of its own. What is finished stays finished."""

from __future__ import annotations

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
from gspo.config.resume import changed, left_out, may_differ
from gspo.report.read import read_lines
from gspo.safe import replace_file

GRACE = 120.0  # seconds that a stopped cell has for the step it is in, and its checkpoint
OF_ITS_NUMBERS = ("eval.", "guard.")  # a resumed run may change them; a cell's numbers are of those that it ran with


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: "done", "failed" or "stopped", why, and the seconds that it ran now (0: it was done before)."""

    cell: Cell
    status: str
    reason: str = ""
    seconds: float = 0.0


def finished(cell: Cell) -> bool:
    """Whether the cell's run is done. Raises ValueError where its folder holds a run of another configuration, or of more
    steps.
    """
    folder = Path(cell.config.log.dir)
    if not (folder / "config.toml").exists():
        return False
    remedy = "Delete the folder, or choose another --dir"
    begun = load_of_run(folder / "config.toml", remedy)
    for key, was, is_now in changed(begun, cell.config):
        free = may_differ(key) and not key.startswith(OF_ITS_NUMBERS)
        if not free and not left_out(key, begun, cell.config):
            raise ValueError(
                f"{folder}: holds a cell of another study: {key} = {was!r} there, {is_now!r} in this one. {remedy}"
            )
    done = max((line.get("step", 0) for line in read_lines(folder / "metrics.jsonl")), default=0)
    if done > (steps := cell.config.train.steps):
        raise ValueError(f"{folder}: holds a cell of {done} steps, more than train.steps = {steps}. {remedy}")
    return done == steps or stopped(cell)


def stopped(cell: Cell) -> bool:
    """Whether the guard has stopped the cell's run. It ends there: resumed, it would be stopped again."""
    return any(event.get("kind") == "collapse" for event in read_lines(Path(cell.config.log.dir) / "events.jsonl"))


class Running:
    """A cell's process. Its output goes into `output.txt` beside the run's folder."""

    def __init__(self, cell: Cell, threads: int) -> None:
        self.cell, self.begin = cell, time.monotonic()
        folder = Path(cell.config.log.dir)
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.with_name(f"{folder.name}.toml")
        replace_file(file, to_toml(cell.config, secrets=True).encode(), mode=0o600)  # the run needs its secrets
        self.log = folder.with_name(f"{folder.name}.txt")
        # -P: a random.py in the current folder is not Python's. Rewards are found there all the same.
        command = [sys.executable, "-P", "-m", "gspo.compare.cell", str(os.getpid()), "train", str(file)]
        command += ["--resume"] if (folder / "config.toml").exists() else []
        cores = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        self.log.unlink(missing_ok=True)  # it may be a link
        with open(self.log, "w", encoding="utf-8") as output:
            # A session of its own: Ctrl-C reaches it once, through `stop`.
            self.process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | cores,
            )  # fmt: skip

    def outcome(self) -> CellOutcome | None:
        """How it ended; None while it runs."""
        status = self.process.poll()
        if status is None:
            return None
        seconds = time.monotonic() - self.begin
        if status == 0 or stopped(self.cell):
            return CellOutcome(self.cell, "done", seconds=seconds)
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        reason = next((line for line in reversed(lines) if "error:" in line.lower()), lines[-1] if lines else "")
        reason = reason.removeprefix("gspo: error: ")
        return CellOutcome(self.cell, "stopped" if status == 130 else "failed", reason or f"exit status {status}", seconds)

    def stop(self) -> None:
        """Asks it to finish its step and save."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it and all its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run_cells(
    cells: Sequence[Cell],
    workers: int,
    threads: int,
    tell: Callable[[CellOutcome, int], None] = lambda outcome, remaining: None,
) -> list[CellOutcome]:
    """Runs what is not finished, `workers` at once; `tell(outcome, remaining)` hears of each end. Failed ones stop no other.

    Raises ValueError where a folder holds another run. Whatever ends it early, Ctrl-C or an error, the running cells save
    their work first.
    """
    waiting = [cell for cell in cells if not finished(cell)]
    outcomes = [CellOutcome(cell, "done") for cell in cells if cell not in waiting]
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
                    tell(outcome, len(waiting) + len(running))
    except BaseException:
        for run in running:
            run.stop()
        deadline = time.monotonic() + GRACE
        while any(run.process.poll() is None for run in running) and time.monotonic() < deadline:
            time.sleep(0.1)
        raise
    finally:
        for run in running:
            run.kill()
    return outcomes
