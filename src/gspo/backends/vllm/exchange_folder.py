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
            begun.rename(begun.with_name(LOCK))  # renamed last, so that nobody sees it unlocked
            yield Path(scratch)


def owner(run: Path | None) -> dict[str, str]:
    """The owner of a folder: its machine and its run."""
    return {"machine": machine(), "run": str(run.absolute()) if run else ""}


def machine() -> str:
    """Identifies this machine until its next boot: containers and clones may share a hostname."""
    with contextlib.suppress(OSError):
        return f"{platform.node()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return platform.node()


def sweep(given: SamplerConfig, run: Path | None) -> None:
    """Deletes what killed runs have left: folders whose lock nobody holds, and their engines' output.

    Other machines may share sampler.weight_dir without seeing each other's locks. There, only folders of this machine or
    this run are deleted.
    """
    for path in place_of(given).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), open(path, "r+", encoding="utf-8", errors="replace") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if given.weight_dir is None or related(lock.read(), owner(run)):
                shutil.rmtree(path.parent, ignore_errors=True)
                for log in [*logs(path.parent.name, None), *logs(path.parent.name, None, place_of(given))]:
                    log.unlink(missing_ok=True)


def related(text: str, own: dict[str, str]) -> bool:
    """Whether a lock file's text names the same machine or the same run."""
    try:
        found = json.loads(text)
        return bool(found["machine"] == own["machine"] or (own["run"] and found["run"] == own["run"]))
    except (ValueError, TypeError, KeyError):  # from an earlier gspo, or damaged
        return False


def logs(name: str, engines: int | None, folder: Path | None = None) -> list[Path]:
    """The log files of `engines` engines of the exchange folder `name`; None: all that exist. folder: where they are, by
    default the folder for temporary files.
    """
    folder, stem = folder or Path(tempfile.gettempdir()), f"{name}-vllm"
    if engines is None:
        return sorted(folder.glob(f"{stem}*.log"))
    return [folder / (f"{stem}.log" if engines == 1 else f"{stem}-{i}.log") for i in range(engines)]
