"""Writes files and folders atomically: whole or not at all, even on a full or failing disk, or if killed halfway."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from safetensors import SafetensorError

from gspo.safe import replace_file

SUMS = "SHA256SUMS"  # as `sha256sum -c` reads it
READ = (".safetensors", ".pt", ".json", ".jsonl", ".toml", ".jinja", ".model")
FULL = (errno.ENOSPC, errno.EDQUOT)
MIN_FREE = 1 << 20  # bytes: a disk with less free space counts as full
# Suffixes beside a folder: its next version, its previous one, and one that is being deleted.
PART, BEFORE, OLD = "part", "before", "old"


class SaveError(RuntimeError):
    """The disk refused a write."""


def cache_folder() -> Path:
    """gspo's folder in the user's cache, to which nobody else may write: models are loaded from it. Raises SaveError."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gspo"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home
        raise SaveError(f"gspo's folder in the user's cache cannot be made ({error}): set XDG_CACHE_HOME") from error
    return folder


def write_folder(final: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a temporary folder, syncs it to disk and renames it to `final`. An existing folder is replaced. If
    the disk refuses the new one, it stays, and SaveError is raised.
    """
    part, before = beside(final, PART), beside(final, BEFORE)
    try:
        with writing(final):
            recover(final)
            part.mkdir(parents=True)
            write(part)
            for path in (part, *part.rglob("*")):
                sync(path)
            if os.path.lexists(final):
                final.rename(before)
            part.rename(final)
            sync(final.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            recover(final)
        raise
    delete(before)


def write_text(path: Path, text: str) -> None:
    """Writes a small file atomically, and syncs it and its name to disk. Raises SaveError if the disk refuses it."""
    with writing(path):
        replace_file(path, text.encode())
        sync(path.parent)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises SaveError in place of an error by which the disk refuses a write to `path`."""
    try:
        yield
    # torch and safetensors have their own errors for a full disk, and tokenizers raises a plain Exception.
    except Exception as error:
        if not isinstance(error, (OSError, RuntimeError, SafetensorError)) and type(error) is not Exception:
            raise
        place = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(place).free
        text = f"{path} could not be written ({error}); {free / 2**30:.1f} GiB are free there"
        full = any(os.strerror(number) in str(error) for number in FULL) or free < MIN_FREE
        raise SaveError(f"{text}: the disk is full, make room on it" if full else text) from error


def beside(path: Path, kind: str) -> Path:
    """The hidden path beside `path` for its next (PART), previous (BEFORE) or deleted version (OLD)."""
    return path.with_name(f".{path.name}.{kind}")


def recover(final: Path) -> None:
    """Cleans up what a killed process left beside `final`, and restores a previous version that it had moved away."""
    before = beside(final, BEFORE)
    if os.path.lexists(before) and not os.path.lexists(final):
        before.rename(final)
    for kind in (PART, BEFORE, OLD):
        delete(beside(final, kind))


def sweep(folder: Path, names: str) -> None:
    """Cleans up in `folder` what killed processes left beside files and folders whose names match the regex `names`."""
    left = re.compile(rf"\.({names})\.({PART}|{BEFORE}|{OLD})")
    for name in {found[1] for path in folder.iterdir() if (found := left.fullmatch(path.name))}:
        recover(folder / name)


def remove(folder: Path) -> None:
    """Renames the folder before deleting it, so that a kill leaves no partial folder under its name."""
    gone = beside(folder, OLD)
    delete(gone)
    with contextlib.suppress(OSError):  # retried after the next checkpoint
        folder.rename(gone)
    delete(gone)


def delete(path: Path) -> None:
    """Deletes a file, symlink or folder if it exists. What cannot be deleted stays."""
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def write_sums(folder: Path) -> None:
    """Writes SHA256SUMS with the checksum of every file in `folder`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def damage(folder: Path) -> str:
    """Describes the first file of `folder` that does not match its checksum; "" if all match, or there are no checksums.
    Unlisted files (a GGUF, notes) are ignored, unless they have a suffix that gspo reads (READ).
    """
    if not (folder / SUMS).exists():
        return ""
    *lines, rest = (folder / SUMS).read_text(encoding="utf-8", errors="replace").split("\n")
    parts = [re.fullmatch("([0-9a-f]{64})  (.+)", line) for line in lines]
    sums = {folder / part[2]: part[1] for part in parts if part}
    if rest or not sums or len(sums) < len(lines):
        return f"{folder / SUMS} is damaged"
    for path, sum in sums.items():
        if not path.is_file():
            return f"{path} is missing"
        try:
            same = _sum(path) == sum
        except OSError as error:  # a rewind goes on without the checkpoint
            return f"{path} cannot be read ({error})"
        if not same:
            return f"{path} is damaged: its checksum is not the one in {SUMS}"
    for path in sorted(folder.rglob("[!.]*")):
        if path.suffix in READ and path.is_file() and path not in sums:
            return f"{path} is not in {SUMS}: the file was added, or its line was taken out"
    return ""


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Blocks until a file or folder is on disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
