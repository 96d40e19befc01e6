"""Installs gspo's wheel by name into an empty environment, runs the demo there for two steps, and uninstalls it.

Fetches SmolLM2 into an empty cache (93 MB). Fails if a command does, or if pip leaves something of gspo behind.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = {"steps": 2, "every": 2, "num_prompts": 4, "num_generations": 4}
"""What is changed in the demo's settings, in their file in the environment."""


def shorten(environment):
    """Makes the demo short that is installed in an environment."""
    (file,) = environment.glob("lib/python3*/site-packages/gspo/recipes/smollm2-words.toml")
    text = file.read_text()
    for name, value in SHORT.items():
        text, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", text, flags=re.M)
        assert count, f"{file.name} has no {name}"
    file.write_text(text)


def tried(folder):
    """Runs the commands of a new user in an empty folder, and returns what is wrong in the end."""
    environment, empty, wheels = folder / "env", folder / "empty", folder / "wheels"
    for each in (empty, wheels):
        each.mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"XDG_CACHE_HOME": str(folder / "cache"), "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def run(*words):
        print("$", *words, flush=True)
        subprocess.run(words, cwd=empty, env=variables, check=True)

    run(sys.executable, "-m", "venv", environment)
    run("pip", "wheel", "-q", "--no-deps", "-w", wheels, ROOT)
    (wheel,) = wheels.iterdir()
    print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB", flush=True)
    run("pip", "install", "-q", "-c", ROOT / "constraints.txt", f"gspo[demo] @ {wheel.as_uri()}")
    shorten(environment)
    run("gspo", "--version")
    run("gspo", "config", "rollout")
    run("gspo", "demo")
    run("pip", "uninstall", "-q", "-y", "gspo")
    wrong = [f"{path} is left" for path in environment.rglob("*gspo*")]
    wrong += [f"{path} is new" for path in empty.iterdir() if path.name != "runs"]
    return wrong + ([] if (empty / "runs" / "demo" / "report.html").is_file() else ["the demo left no report"])


def main():
    """Returns the exit status."""
    argparse.ArgumentParser(description=str(__doc__).splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="gspo-wheel-") as scratch:
        wrong = tried(Path(scratch))
    print(*wrong or ["installed, run and uninstalled"], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
