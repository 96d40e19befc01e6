"""A disk that loses its power: what a run's folder may look like afterwards, at every operation on it."""

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHANGES = ("rename", "replace", "mkdir", "rmdir", "unlink", "remove", "link", "symlink", "fsync")

Tree = dict[str, bytes | None]
"""Each path below the root with its content; None for a folder."""


@dataclass
class Disk:
    """What is on the disk for certain: the content of files and the names in folders when they were last synced.

    States are noted before each operation, in two kinds. "strict": nothing is there but what was synced. "ordered": names
    have reached the disk in order, as with a journal, but a file that was not synced is empty.
    """

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    states: list[tuple[str, Tree]] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)  # open files: their inode numbers are not given to others

    def note(self, what: str) -> None:
        """Notes the states that a loss of power now may leave."""
        self._hold(self.root)
        here = os.stat(self.root).st_ino
        self.folders.add(here)
        self.names.setdefault(here, {})
        self.states.append((f"strict, before {what}", dict(self._durable(here, ""))))
        self.states.append((f"ordered, before {what}", dict(self._ordered(self.root, ""))))

    def synced(self, descriptor: int) -> None:
        """A file or folder was synced."""
        found = os.fstat(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.is_relative_to(self.root):
            return
        self._hold(self.root)
        if stat.S_ISDIR(found.st_mode):
            self.names[found.st_ino] = {name.name: name.lstat().st_ino for name in path.iterdir()}
            self.folders |= {name.lstat().st_ino for name in path.iterdir() if name.is_dir()}
        else:
            self.contents[found.st_ino] = path.read_bytes()

    def close(self) -> None:
        """Closes the files that it holds."""
        for descriptor in self.held.values():
            os.close(descriptor)

    def _hold(self, folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            with contextlib.suppress(OSError):
                number = path.lstat().st_ino
                if number not in self.held:
                    self.held[number] = os.open(path, os.O_RDONLY)

    def _durable(self, folder: int, at: str) -> Iterator[tuple[str, bytes | None]]:
        for name, number in self.names.get(folder, {}).items():
            if number in self.folders:
                yield at + name, None
                yield from self._durable(number, f"{at}{name}/")
            else:
                yield at + name, self.contents.get(number, b"")

    def _ordered(self, folder: Path, at: str) -> Iterator[tuple[str, bytes | None]]:
        for path in sorted(folder.iterdir()):
            if path.is_dir():
                yield at + path.name, None
                yield from self._ordered(path, f"{at}{path.name}/")
            else:
                yield at + path.name, self.contents.get(path.lstat().st_ino, b"")


@contextlib.contextmanager
def watched(root: Path, before: Callable[[str], None], synced: Callable[[int], None] = lambda _: None) -> Iterator[None]:
    """Calls `before` with each operation of this process on names below `root`, and with each sync, before it is done."""
    real = {name: getattr(os, name) for name in CHANGES}

    def wrapped(name: str) -> Callable[..., None]:
        def call(*args: Any, **more: Any) -> None:
            if name == "fsync" or "dir_fd" in more or any(str(root) in str(arg) for arg in args):
                before(f"{name} {' '.join(str(arg).removeprefix(f'{root}/') for arg in args)}")
            real[name](*args, **more)
            if name == "fsync":
                synced(args[0])

        return call

    try:
        for name in CHANGES:
            setattr(os, name, wrapped(name))
        yield
    finally:
        for name in CHANGES:
            setattr(os, name, real[name])


@contextlib.contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Records the states of a folder at each operation."""
    disk = Disk(root)
    with watched(root, disk.note, disk.synced):
        yield disk
    disk.note("the end")
    disk.close()


@contextlib.contextmanager
def failing(root: Path, number: int, error: BaseException) -> Iterator[list[str]]:
    """Lets one operation fail. Yields all operations up to then."""
    seen: list[str] = []

    def before(what: str) -> None:
        seen.append(what)
        if len(seen) == number:
            raise error

    with watched(root, before):
        yield seen


def restored(tree: Tree, root: Path) -> None:
    """Makes `root` hold this tree and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, content in tree.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)
