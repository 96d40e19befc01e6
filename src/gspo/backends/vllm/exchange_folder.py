"""The folder through which weights reach the engines: a run makes one, and clears up after runs that were killed."""

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
    """Where runs with these settings make their folders."""
    return Path(given.exchange or (MEMORY if MEMORY.is_dir() else tempfile.gettempdir()))


@contextmanager
def exchange(given: SamplerConfig, run: Path | None) -> Iterator[Path]:
    """A folder that is deleted in the end; what killed runs have left beside it is deleted now. run: the run's folder."""
    sweep(given, run)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=place_of(given)) as scratch:
        begun = Path(scratch) / f"{LOCK}.new"
        with open(begun, "w", encoding="utf-8") as lock:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            json.dump(owner(run), lock)
            lock.flush()
            begun.rename(begun.with_name(LOCK))  # it is never seen without its lock
            yield Path(scratch)


def owner(run: Path | None) -> dict[str, str]:
    """Whose a folder is: of which machine, and of which run."""
    return {"machine": machine(), "run": str(run.absolute()) if run else ""}


def machine() -> str:
    """Which machine this is, until it starts anew: containers and clones may share a name."""
    with contextlib.suppress(OSError):
        return f"{platform.node()} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return platform.node()


def sweep(given: SamplerConfig, run: Path | None) -> None:
    """Deletes what runs that were killed have left: folders whose lock nobody holds, and their engines' output.

    Other machines may share sampler.exchange, and may not see one another's locks: there, only what is of this machine or
    of this run is deleted.
    """
    for path in place_of(given).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), open(path, "r+", encoding="utf-8", errors="replace") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if given.exchange is None or related(lock.read(), owner(run)):
                shutil.rmtree(path.parent, ignore_errors=True)
                for log in [*logs(path.parent.name, None), *logs(path.parent.name, None, place_of(given))]:
                    log.unlink(missing_ok=True)


def related(text: str, own: dict[str, str]) -> bool:
    """Whether what stands in a lock is of the same machine or the same run."""
    try:
        found = json.loads(text)
        return bool(found["machine"] == own["machine"] or (own["run"] and found["run"] == own["run"]))
    except (ValueError, TypeError, KeyError):  # of an earlier gspo, or damaged
        return False


def logs(name: str, engines: int | None, folder: Path | None = None) -> list[Path]:
    """The files of the output of the engines of the exchange folder `name`: those of so many, or (None) all that there are.
    folder: where they are, if not among temporary files.
    """
    folder, stem = folder or Path(tempfile.gettempdir()), f"{name}-vllm"
    if engines is None:
        return sorted(folder.glob(f"{stem}*.log"))
    return [folder / (f"{stem}.log" if engines == 1 else f"{stem}-{i}.log") for i in range(engines)]
