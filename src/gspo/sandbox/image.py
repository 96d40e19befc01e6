"""The files that a sandbox sees: a few of our own modules, and a precompiled C++ header.

They are cached under a hash of their sources, so that many processes share them and a killed process leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from gspo.sandbox.runner import COMPILER, FLAGS
from gspo.workers import supervisor

MODULES = ("gspo/workers/json_codec.py", *(f"gspo/sandbox/{name}.py" for name in ("confine", "runner", "watch")))
LONGEST = 300  # seconds for compiling the header on an idle machine: ample
SCRATCH = "gspo-scratch-"
DAY = 86_400.0  # seconds after which the scratch folder of a killed process is removed: a reply takes minutes
UNUSED = 30 * DAY  # seconds after which an unused image is removed, such as that of another Python


class SandboxImage:
    """A world-readable folder with `modules` for an interpreter, and `include` with the header once a program needs it."""

    def __init__(self, python: str) -> None:
        package = Path(__file__).parents[2]
        texts = {name: (package / name).read_bytes() for name in MODULES}
        name = hashlib.sha256(repr((python, os.stat(python).st_mtime_ns, sorted(texts.items()))).encode()).hexdigest()[:16]
        self.folder = _cache() / name
        if not self.folder.is_dir():
            _make(self.folder, texts, python)
            _evict(self.folder.parent.iterdir(), UNUSED)
        with contextlib.suppress(OSError):
            os.utime(self.folder)
        _evict(Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"), DAY)

    def header(self) -> None:
        """Precompiles <bits/stdc++.h> once: a program that sorts its input compiles in 0.9 instead of 3.3 CPU seconds.
        Raises RuntimeError without a working compiler.
        """
        target = self.folder / "include" / "bits" / "stdc++.h.gch"
        if problem := no_compiler():
            raise RuntimeError(problem)
        if target.is_file() and target.stat().st_mtime > os.stat(COMPILER).st_ctime:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            source, made = Path(folder, "all.h"), Path(folder, "made")
            source.write_text("#include <bits/stdc++.h>\n")
            words = [COMPILER, *FLAGS, "-x", "c++-header", "-o", str(made), str(source)]
            done = subprocess.run(words, check=False, capture_output=True, env={"PATH": "/usr/bin:/bin"})
            if done.returncode:
                raise RuntimeError(f"g++ cannot compile <bits/stdc++.h>: {done.stderr.decode(errors='replace'):.300}")
            made.chmod(0o644)
            target.parent.chmod(0o755)
            made.replace(target)


def no_compiler() -> str:
    """Why no C++ program can be compiled, and the remedy; "" if the compiler of the sandbox is installed."""
    return "" if shutil.which(COMPILER) else f"C++ programs need {COMPILER}: install the package g++ (apt-get install g++)"


def _cache() -> Path:
    """The cache folder. For root it must be readable by other users, since the sandbox does not run as root."""
    own = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for base in ("/var/cache",) if os.geteuid() == 0 else (own, f"/var/tmp/{os.getuid()}"):
        folder = Path(base, "gspo-sandbox")
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            owners = {folder.stat().st_uid, folder.parent.stat().st_uid}  # nobody else may write code that runs here
            if owners <= {0, os.geteuid()} and os.access(folder, os.W_OK):
                return folder
    raise RuntimeError(f"the sandbox needs a folder for its own files, and {folder} cannot be made or is not ours")


def _make(folder: Path, texts: dict[str, bytes], python: str) -> None:
    """Writes the image under a temporary name and renames it, so that it appears atomically."""
    new = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for name, text in texts.items():
            target = new / "modules" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
            for parent in list(target.relative_to(new / "modules").parents)[:-1]:
                (new / "modules" / parent / "__init__.py").touch()
        (new / "include").mkdir()
        words = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(new / "modules")]
        subprocess.run(words, check=False, capture_output=True, env={})  # optional: saves a little start time
        for path in (new, *new.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with contextlib.suppress(OSError):  # another process was faster
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _evict(folders: Iterable[Path], age: float) -> None:
    """Removes those that nobody has used for so many seconds."""
    for folder in folders:
        with contextlib.suppress(OSError):
            if time.time() - folder.lstat().st_mtime > age:
                subprocess.run(["rm", "-rf", folder], check=False, capture_output=True)


@contextlib.contextmanager
def scratch(user: int | None) -> Iterator[str]:
    """Yields a new folder for one sandbox, owned by `user`. It is deleted afterwards, even if a worker is killed."""
    if supervisor.folder:
        os.makedirs(supervisor.folder, exist_ok=True)
        os.chmod(supervisor.folder, 0o711)  # `user` must get through
    path = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir=supervisor.folder)
    try:
        if user is not None:
            os.chown(path, user, user)
        yield path
    finally:
        subprocess.run(["rm", "-rf", path], check=False, capture_output=True)  # of any depth, unlike shutil.rmtree
