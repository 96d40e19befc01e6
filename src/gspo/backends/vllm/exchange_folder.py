"""The exchange folder for weights: created by each run, which also cleans up after killed runs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gspo.config.rollout import SamplerConfig
from gspo.workers.processes import close_in_children

MEMORY, LOCK = Path("/dev/shm"), "lock"
PREFIX = "gspo-"


def place_of(given: SamplerConfig) -> Path:
    """The parent folder of the exchange folders of runs with these settings."""
    return Path(given.weight_dir or (MEMORY if MEMORY.is_dir() else tempfile.gettempdir()))


@contextmanager
def exchange(given: SamplerConfig, run: Path | None) -> Iterator[Path]:
    """Creates a folder and deletes it on exit. First deletes what killed runs have left beside it. run: the run's folder."""
    sweep(given, run)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place_of(given)) as scratch:
        begun = Path(scratch) / f"{LOCK}.new"
        with open(begun, "w", encoding="utf-8") as lock:
            with contextlib.suppress(OSError):  # the file system has no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump(owner(run), lock)
            lock.flush()
            close_in_children(lock)
            begun.rename(begun.with_name(LOCK))  # renamed last, so that nobody sees it unlocked
            yield Path(scratch)


def owner(run: Path | None) -> dict[str, str]:
    """The owner of a folder: its machine, until that boots again, and its run. Containers may share a hostname."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"machine": f"{platform.node()} {boot}", "run": str(run.absolute()) if run else ""}


def sweep(given: SamplerConfig, run: Path | None) -> None:
    """Deletes what killed runs have left: folders whose lock nobody holds, and their engines' output. Of a folder that other
    machines may share, without seeing each other's locks: only what is this machine's or this run's.
    """
    own, place = owner(run), place_of(given)
    for path in place.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError, ValueError), open(path, "r+", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left = json.load(lock)
            if given.weight_dir is None or left["machine"] == own["machine"] or (run and left["run"] == own["run"]):
                shutil.rmtree(path.parent, ignore_errors=True)
                for folder in (Path(tempfile.gettempdir()), place):
                    for log in folder.glob(f"{path.parent.name}-vllm-*.log"):
                        log.unlink(missing_ok=True)
