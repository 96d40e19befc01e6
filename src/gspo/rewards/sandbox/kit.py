"""What a sandbox finds inside: our own few modules, and a precompiled header for C++. It lies in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import gspo
from gspo.rewards.sandbox.runner import FLAGS

MODULES = ("gspo/data/plain.py", "gspo/rewards/sandbox/confine.py", "gspo/rewards/sandbox/runner.py")
LONGEST = 120.0
"""Seconds that the compiler may take for the header."""


class Kit:
    """A folder that anybody may read: `modules`, and `include` with the header once a C++ program needs it.

    python: the interpreter inside.
    """

    def __init__(self, python: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gspo-sandbox-"))
        self.folder.chmod(0o755)
        self.modules, self.include = self.folder / "modules", self.folder / "include"
        self._lock, self._made = threading.Lock(), False
        package = Path(gspo.__file__).parents[1]
        for name in MODULES:
            target = self.modules / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package / name, target)
            for parent in list(target.relative_to(self.modules).parents)[:-1]:
                (self.modules / parent / "__init__.py").touch()
        self.include.mkdir()
        compiled = [python, "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(self.modules)]
        subprocess.run(compiled, check=False, capture_output=True, env={})
        for path in self.folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def header(self) -> None:
        """Compiles <bits/stdc++.h> once. Programs that begin with it then compile in a fraction of the time. Raises
        RuntimeError without a compiler.
        """
        with self._lock:
            if self._made:
                return
            compiler = shutil.which("g++", path="/usr/bin")
            if compiler is None:
                raise RuntimeError("C++ programs need g++ in /usr/bin: install the package g++ (apt-get install g++)")
            folder = self.include / "bits"
            folder.mkdir(exist_ok=True)
            source, target = self.folder / "all.h", folder / "stdc++.h.gch"
            source.write_text("#include <bits/stdc++.h>\n")
            words = [compiler, *FLAGS, "-x", "c++-header", "-o", str(target), str(source)]
            done = subprocess.run(words, check=False, capture_output=True, timeout=LONGEST, env={"PATH": "/usr/bin:/bin"})
            if done.returncode:
                raise RuntimeError(f"g++ cannot compile <bits/stdc++.h>: {done.stderr.decode(errors='replace'):.300}")
            for path in (folder, target):
                path.chmod(0o755)
            self._made = True

    def scratch(self, user: int | None) -> str:
        """A new folder for one sandbox, which `user` owns."""
        path = tempfile.mkdtemp(prefix="scratch-", dir=self.folder)
        if user is not None:
            os.chown(path, user, user)
        return path

    def close(self) -> None:
        """Removes it all."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder, ignore_errors=True)
