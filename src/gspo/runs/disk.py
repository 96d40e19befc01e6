"""Files and folders that appear as a whole or not at all, also where a disk is full, fails or is killed in the middle."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from gspo.safe import replace_file

SUMS = "SHA256SUMS"  # as `sha256sum -c` reads it
READ = (".safetensors", ".pt", ".json", ".jsonl", ".toml", ".jinja", ".model")
FULL = (errno.ENOSPC, errno.EDQUOT)
LITTLE = 1 << 20  # bytes: a disk with less to give is full
# Beside a folder NAME: what will be it, what was it before, and what is being deleted.
PART, BEFORE, OLD = "part", "before", "old"


class SaveError(RuntimeError):
    """The disk did not take what was to be written."""


def write_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Lets `write` fill a folder that takes the name `final` at once, when all of it is on the disk. One that was there is
    replaced, or stays where the disk does not take the new one. Raises SaveError then.
    """
    part, before = beside(final, PART), beside(final, BEFORE)
    try:
        mend(final)
        part.mkdir(parents=True)
        write(part)
        for path in (part, *part.rglob("*")):
            _sync(path)
        if os.path.lexists(final):
            final.rename(before)
        part.rename(final)
        _sync(final.parent)
    except BaseException as error:
        why = refused(final, error)
        with contextlib.suppress(OSError):
            mend(final)
        if why:
            raise SaveError(why) from error
        raise
    delete(before)


def write_text(path: Path, text: str) -> None:
    """Writes a small file by safe.replace_file. Raises SaveError where the disk does not take it."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise SaveError(refused(path, error)) from error


def beside(path: Path, kind: str) -> Path:
    """The hidden name of what is on its way to `path` or away from it."""
    return path.with_name(f".{path.name}.{kind}")


def mend(final: Path) -> None:
    """Clears up what a kill has left beside `final`; what it was about to replace comes back."""
    before = beside(final, BEFORE)
    if os.path.lexists(before) and not os.path.lexists(final):
        before.rename(final)
    for kind in (PART, BEFORE, OLD):
        delete(beside(final, kind))


def sweep(folder: Path, names: str) -> None:
    """Clears up what kills have left in `folder` beside files and folders whose names match the expression `names`."""
    left = re.compile(rf"\.({names})\.({PART}|{BEFORE}|{OLD})")
    for name in {found[1] for path in folder.iterdir() if (found := left.fullmatch(path.name))}:
        mend(folder / name)


def remove(folder: Path) -> None:
    """Takes the folder's name away before anything in it, so that a kill leaves no half of it under that name."""
    gone = beside(folder, OLD)
    delete(gone)
    with contextlib.suppress(OSError):  # then it is tried again after the next one
        folder.rename(gone)
    delete(gone)


def delete(path: Path) -> None:
    """A file, a link or a folder, if it is there. What cannot be deleted stays."""
    with contextlib.suppress(FileNotFoundError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)


def write_sums(folder: Path) -> None:
    """Writes the checksum of every file in `folder` beside them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sum(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def damage(folder: Path) -> str:
    """Which file of `folder` is not what `write_sums` saw, in words; "" where all are, or there are no checksums. Files
    that others put there, such as a GGUF or notes, are passed over; of the kinds that are read again none may be unlisted.
    """
    if not (folder / SUMS).exists():
        return ""
    *lines, rest = (folder / SUMS).read_text(encoding="utf-8", errors="replace").split("\n")
    if rest or not lines:
        return f"{folder / SUMS} is damaged"
    for line in lines:
        sum, _, name = line.partition("  ")
        path = folder / name
        if not re.fullmatch("[0-9a-f]{64}", sum) or not name.isprintable():
            return f"{folder / SUMS} is damaged"
        if not path.is_file():
            return f"{path} is missing"
        try:
            same = _sum(path) == sum
        except OSError as error:
            return f"{path} cannot be read ({error})"
        if not same:
            return f"{path} is damaged: its checksum is not the one in {SUMS}"
    listed = {SUMS, *(line.partition("  ")[2] for line in lines)}
    for path in sorted(folder.rglob("[!.]*")):
        if path.suffix in READ and path.is_file() and path.relative_to(folder).as_posix() not in listed:
            return f"{path} is not in {SUMS}: the file was added, or its line was taken out"
    return ""


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Until what was written is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refused(path: Path, error: BaseException) -> str:
    """Why the disk did not take what was to be written; "" for an error of another kind."""
    # torch and safetensors have their own errors for a full disk, and tokenizers raises a plain Exception.
    if not isinstance(error, (OSError, RuntimeError, SafetensorError)) and type(error) is not Exception:
        return ""
    place = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    text = f"{path} could not be written ({error}); {free / 2**30:.1f} GiB are free there"
    full = any(os.strerror(number) in str(error) for number in FULL) or free < LITTLE
    return f"{text}: the disk is full, make room on it" if full else text
