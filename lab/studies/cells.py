"""Cells of a study as processes of their own: each result is a small JSON, all of them are kept in one archive.

After Ctrl-C the cells that run end and are kept; a second one ends them too.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent


Result = dict[str, Any]


class Cell(Protocol):
    """One of a study. name: of its file. settings: all that its result depends on, as JSON. cost: seconds of a core."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def settings(self) -> dict[str, Any]: ...  # noqa: D102
    @property
    def cost(self) -> float: ...  # noqa: D102


class Study:
    """The cells that are planned, and their results. name: of the archive in results/, and of a folder in runs/.
    script: runs the cell whose name it is given. planned: all cells, which may depend on the results that are there.
    """

    def __init__(self, name: str, script: str, planned: Callable[[list[Result]], Iterable[Cell]]) -> None:
        self.results, self.work = HERE / "results" / name, Path("runs") / name
        self.script, self.planned = script, planned

    def cells(self) -> list[Cell]:
        """All that are planned by what is done."""
        files = sorted((self.results / "cells").glob("*.json"))
        return list(self.planned([json.loads(file.read_text(encoding="utf-8")) for file in files]))

    def file_of(self, cell: Cell) -> Path:
        """Where its result is."""
        return self.results / "cells" / f"{cell.name}.json"

    def done(self, cell: Cell) -> bool:
        """Whether its result is there, and its own: a cell with other settings is not this one."""
        try:
            told = json.loads(self.file_of(cell).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return isinstance(told, dict) and told.get("settings") == cell.settings

    def keep(self, cell: Cell, told: Result) -> None:
        """Writes its result as a whole or not at all."""
        path = self.file_of(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f"{path.name}.{os.getpid()}.new")  # another process may run the same cell
        made.write_text(f"{json.dumps({'settings': cell.settings} | told)}\n", encoding="utf-8")
        made.replace(path)

    def kept(self) -> list[Result]:
        """The results that were kept, of cells of the plan."""
        archive = self.results.with_suffix(".tar.xz")
        if not archive.exists():
            return []
        found = []
        with tarfile.open(archive) as file:
            for member in file.getmembers():
                data = file.extractfile(member)
                found += [] if data is None else [json.loads(data.read())]
        planned = [cell.settings for cell in self.planned(found)]
        return [each for each in found if each["settings"] in planned]

    def unpack(self) -> None:
        """Puts what was kept where cells are done, so that the next `pack` keeps it too."""
        kept = self.kept()
        by_settings = {json.dumps(each["settings"], sort_keys=True): each for each in kept}
        for cell in self.planned(kept):
            told = by_settings.get(json.dumps(cell.settings, sort_keys=True))
            if told is not None and not self.done(cell):
                self.keep(cell, told)

    def pack(self) -> None:
        """Keeps what is done."""
        archive = self.results.with_suffix(".tar.xz")
        made = archive.with_name(f"{archive.name}.{os.getpid()}.new")  # others may run beside
        with tarfile.open(made, "w:xz") as file:
            for cell in filter(self.done, self.cells()):
                data = self.file_of(cell).read_bytes()
                member = tarfile.TarInfo(f"cells/{self.file_of(cell).name}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
        made.replace(archive)


class Workers:
    """Runs cells as processes, so many at a time, and starts none that would end after `end`. asked: how often it was asked
    to stop.
    """

    def __init__(self, study: Study, count: int, end: float) -> None:
        self.study, self.count, self.end, self.asked = study, count, end, 0
        self.running: dict[Cell, subprocess.Popen[bytes]] = {}
        self.failed: list[str] = []
        self.slower = 1.0  # seconds that pass for one that was expected: the longest of all

    def interrupt(self, *_: Any) -> None:
        """Ctrl-C: the first lets those that run end, the second ends them."""
        self.asked += 1
        if self.asked == 1:
            print(f"stops when {len(self.running)} cells have ended; Ctrl-C again ends them now", flush=True)
        else:
            for process in self.running.values():
                process.terminate()

    def run(self, missing: Sequence[Cell]) -> None:
        """Those of the cells that fit into the time, in their order."""
        todo, begun = list(missing), {}
        while True:
            for cell in [cell for cell, process in self.running.items() if process.poll() is not None]:
                took = time.monotonic() - begun[cell]
                self.slower = max(self.slower, took / cell.cost)
                self._ended(cell, took)
            while not self.asked and len(self.running) < self.count and (cell := self._next(todo)):
                todo.remove(cell)
                begun[cell] = time.monotonic()
                self._start(cell)
            if not self.running:
                return
            time.sleep(0.5)

    def _next(self, todo: Sequence[Cell]) -> Cell | None:
        left = self.end - time.monotonic()
        return next((cell for cell in todo if cell.cost * self.slower <= left), None)

    def _start(self, cell: Cell) -> None:
        log = self.study.work / "logs" / f"{cell.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(HERE / self.study.script), cell.name]
        with open(log, "wb") as file:  # a session of its own: Ctrl-C is for this process
            self.running[cell] = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )

    def _ended(self, cell: Cell, took: float) -> None:
        status = self.running.pop(cell).returncode
        if status == 0 and self.study.done(cell):
            self.study.pack()
            print(f"{cell.name}: {took:.0f} s", flush=True)
        elif self.asked < 2:
            self.failed.append(cell.name)
            print(f"{cell.name}: failed ({status}), see {self.study.work / 'logs' / cell.name}.log", flush=True)


def parser(text: str | None) -> argparse.ArgumentParser:
    """What every study of cells may be told."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--hours", type=float, default=1e6, help="starts no cell that would end later")
    made.add_argument("--workers", type=_workers, default=2, help="cells at a time, a core each (default: %(default)s)")
    made.add_argument("--list", action="store_true", help="only tells")
    return made


def _workers(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, at least 1")
    return int(text)


def go_on(study: Study, planned: Sequence[Cell], options: argparse.Namespace) -> int:
    """Runs whatever is missing of these. Returns the status of the command."""
    missing = [cell for cell in planned if not study.done(cell)]
    cost = sum(cell.cost for cell in missing) / 3600
    if options.list:
        _list(planned, missing)
    print(
        f"{len(planned) - len(missing)} of {len(planned)} cells are done; the others take {cost:.1f} hours of a core, about",
        flush=True,
    )
    if options.list:
        return 0
    workers = Workers(study, options.workers, time.monotonic() + 3600 * options.hours)
    signal.signal(signal.SIGINT, workers.interrupt)
    workers.run(missing)
    return 1 if workers.failed else 130 if workers.asked else 0


def _list(planned: Sequence[Cell], missing: Collection[Cell]) -> None:
    for cell in planned:
        print(f"{'      ' if cell in missing else 'done  '}{cell.cost:6.0f} s  {cell.name}")
