"""Compiles this folder's C++ into a library with the machine's own compiler: about a second, once per processor type."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from gspo.runs.disk import SaveError, cache_folder

SOURCES = [Path(__file__).with_name(name) for name in ("kernels.cpp", "attention.cpp")]
HEADER = Path(__file__).with_name("numbers.h")
COMPILERS = ("g++", "clang++")  # tried after $CXX
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-std=c++17")
SECONDS = 120  # compiler timeout
_lock = threading.Lock()
P, N, F, I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "rms_norm": (P, P, P, P, N, N, F, F, I),
    "rms_norm_backward": (P, P, P, P, P, P, P, N, N, F, I),
    "rotary": (P, P, P, P, P, P, N, N, N, N, N, I, I),
    "swiglu": (P, P, P, N, N, N, I),
    "swiglu_backward": (P, P, P, P, P, N, N, N, N, I),
    "sort_choices": (P, P, P, P, N, N),
    "combine": (P, P, P, P, N, N, N, I),
    "combine_backward": (P, P, P, P, P, P, N, N, N, I),
    "experts": (P, P, P, P, P, P, P, N, N, N, N, N, P, I),
    "draw": (P, P, F, P, P, N, N, I),
    "attend": (P, P, P, P, P, P, P, P, P, N, N, N, N, N, N, F, I),
    "attend_step": (P, P, P, P, P, F, F, P, P, N, P, P, P, P, P, P, P, P, N, N, N, N, N, N, F, I),
}
ANSWERS = ("sort_choices", "experts")  # kernels that return an int


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None without a compiler that can build them."""
    return _outcome()[0]


def missing() -> str:
    """Why there are no kernels; "" if there are."""
    return _outcome()[1]


@cache
def _outcome() -> tuple[ctypes.CDLL | None, str]:
    asked = [shlex.split(name) for name in (os.environ.get("CXX", ""), *COMPILERS)]
    found = [[there, *more] for name, *more in filter(None, asked) if (there := shutil.which(name))]
    problem = f"no C++ compiler was found ($CXX, {' or '.join(COMPILERS)})"
    for compiler in found:
        try:
            with _lock:  # threads of one process would write the same temporary file
                return _loaded(compiler), ""
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or str(error)
            problem = f"{' '.join(compiler)} could not compile them: {told.strip()[-500:]}"
    return None, problem


@cache
def sgemm() -> int | None:
    """The address of the sgemm that torch was built with; None if it cannot be found."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(found.sgemm_, P).value
    except (OSError, AttributeError):
        return None


def _loaded(compiler: list[str]) -> ctypes.CDLL:
    with _folder() as folder:
        path = _built(compiler, folder)
        try:
            return _declared(path)
        except (OSError, AttributeError):  # damaged, or built for another system
            path.unlink()
            return _declared(_built(compiler, folder))


def _declared(path: Path) -> ctypes.CDLL:
    made = ctypes.CDLL(str(path))
    for name, arguments in SIGNATURES.items():
        function = getattr(made, name)
        function.argtypes, function.restype = arguments, I if name in ANSWERS else None
    return made


def _built(compiler: list[str], folder: Path) -> Path:
    """The path of the library, compiled unless it is in the cache."""
    version = subprocess.run([*compiler, "-v"], capture_output=True, text=True, timeout=SECONDS, check=True).stderr
    known = "\n".join(
        [*(source.read_text(encoding="utf-8") for source in (*SOURCES, HEADER)), *FLAGS, version, _processor()]
    )
    path = folder / f"kernels-{hashlib.sha256(known.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        made = folder / f"{path.name}.{os.getpid()}.new"  # other processes may compile at the same time
        command = [*compiler, *FLAGS, *map(str, SOURCES), "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    return path


@contextmanager
def _folder() -> Iterator[Path]:
    """The folder for libraries in the user's cache; a temporary folder if others can write to it or the user cannot."""
    try:
        folder = cache_folder()
        state = folder.stat()
        own = state.st_uid == os.getuid() and not state.st_mode & 0o022 and os.access(folder, os.W_OK)
    except (OSError, SaveError):
        own = False
    if own:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gspo-") as made:  # a loaded library outlives its file
        yield Path(made)


def _processor() -> str:
    """Identifies the processor, since the meaning of -march=native depends on it."""
    try:
        lines = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
        return "\n".join(sorted(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))))
    except OSError:
        return platform.processor() + platform.machine()
