"""Environments of their own for programs that gspo does not depend on."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent


def make_environment(name: str, packages: Sequence[str], alone: Sequence[str] = ()) -> Path:
    """The Python of the environment `name` beside the checkout, installed on first use. alone: without dependencies."""
    folder = HERE.parents[1] / name
    python, installed = folder / "bin" / "python", folder / "installed"
    if not installed.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, *packages, "-c", HERE / "trl-constraints.txt"], check=True)
        if alone:
            subprocess.run([*install, "--no-deps", *alone], check=True)
        installed.touch()
    return python
