"""kernels.cpp made into a library: by the machine's own compiler, in about a second, once for each processor and source."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("kernels.cpp")
COMPILERS = ("g++", "clang++")  # $CXX before these
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-std=c++17")
SECONDS = 120  # for the compiler
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
    "attend": (P, P, P, P, P, P, P, P, P, N, N, N, N, N, N, F, I),
}


def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where there is no compiler, or none that can build them."""
    return _outcome()[0]


def missing() -> str:
    """Why there are no kernels; "" where there are."""
    return _outcome()[1]


@cache
def _outcome() -> tuple[ctypes.CDLL | None, str]:
    compiler = next((found for name in (os.environ.get("CXX"), *COMPILERS) if name and (found := shutil.which(name))), None)
    if compiler is None:
        return None, f"no C++ compiler was found ($CXX, {' or '.join(COMPILERS)})"
    try:
        made = _loaded(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        return None, f"{compiler} could not compile them: {told.strip()[-500:]}"
    for name, arguments in SIGNATURES.items():
        function = getattr(made, name)
        function.argtypes, function.restype = arguments, None
    return made, ""


@cache
def sgemm() -> int | None:
    """The address of the matrix product that torch itself was built with; None where it is not to be found."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(found.sgemm_, P).value
    except (OSError, AttributeError):
        return None


def _loaded(compiler: str) -> ctypes.CDLL:
    path = _built(compiler)
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # damaged, or of another system
        path.unlink()
        return ctypes.CDLL(str(_built(compiler)))


def _built(compiler: str) -> Path:
    """The library's file, compiled unless an earlier process has done it."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    known = "\n".join([SOURCE.read_text(encoding="utf-8"), *FLAGS, version, _processor()])
    folder = _folder()
    path = folder / f"kernels-{hashlib.sha256(known.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        made = folder / f"{path.name}.{os.getpid()}.new"  # other processes may compile at the same time
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
    return path


def _folder() -> Path:
    """Where libraries are kept: this user's cache, or where that cannot be written, a folder of this process."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gspo"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gspo-"))


def _processor() -> str:
    """What -march=native means here."""
    try:
        lines = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines())
        return "\n".join(sorted(line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))))
    except OSError:
        return platform.processor() + platform.machine()
