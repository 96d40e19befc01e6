"""How many small defects does the core of the tests find? Makes the changes of tools/mutants.toml, one at a time,
in a copy of this tree, and runs the core of the tests there.

First come the tests of the folder that mirrors the changed file, then, where those find nothing, the whole core. A mutant is
killed where a test fails that the run names; what the suite says of processor seconds is no failure. The tree itself is not
changed, and the tests of a copy import the gspo of that copy. Without a mutant the core must pass: else all are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
PYTHON = ROOT / ".venv" / "bin" / "python"
TESTS = ("-m", "pytest", "--part", "core", "--workers", "2", "-x", "-q", "-p", "no:cacheprovider")
PASSED, FAILED, COLLECTING, NONE = 0, 1, 2, 5  # exit statuses of pytest; 2: a file could not be collected
END = 10.0  # seconds that tests may take to end when they are interrupted


def main() -> int:
    """Runs the mutants. Returns 0 where enough are killed, 1 where not, 2 for what cannot be run, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="MUTANT", help="by the beginning of their names (default: all)")
    parser.add_argument("--least", type=int, default=32, help="how many must be killed, or all of fewer (default: 32)")
    parser.add_argument("--log", type=Path, help="a file to append results to; the mutants that it holds are not run again")
    arguments = parser.parse_args()
    mutants = chosen(arguments.names)
    if not mutants:
        print(f"no mutant in {TABLE} is called {' or '.join(arguments.names)}", file=sys.stderr)
        return 2
    known = read(arguments.log)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for mutant in mutants:
            if mutant.name not in known:
                known[mutant.name] = verdict = tried(mutant)
                note(arguments.log, f"{mutant.name}: {verdict}")
            print(f"{mutant.name}: {known[mutant.name]}", flush=True)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    killed = sum(known[mutant.name].startswith("killed") for mutant in mutants)
    print(f"{killed} of {len(mutants)} killed")
    return int(killed < min(arguments.least, len(mutants)))


@dataclass(frozen=True)
class Mutant:
    """A small defect: in a file, which has the text `old` once, it becomes `new`."""

    name: str
    why: str
    file: str
    old: str
    new: str

    def changed(self, text: str) -> str:
        """The file with the defect. Raises RuntimeError where `old` is not there, or more than once."""
        if text.count(self.old) != 1:
            raise RuntimeError(f"{self.name}: {self.file} has its old text {text.count(self.old)} times: mend {TABLE.name}")
        return text.replace(self.old, self.new)


def chosen(names: list[str]) -> list[Mutant]:
    """The mutants whose names begin with one of these; all without any."""
    mutants = [Mutant(**each) for each in tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutant"]]
    return [mutant for mutant in mutants if not names or mutant.name.startswith(tuple(names))]


def read(log: Path | None) -> dict[str, str]:
    """The verdict on each mutant of a log. A line that was cut off in the middle does not count."""
    text = log.read_text(encoding="utf-8") if log is not None and log.exists() else ""
    return dict(line.rstrip("\n").split(": ", 1) for line in text.splitlines(True) if ": " in line and line.endswith("\n"))


def note(log: Path | None, line: str) -> None:
    """Appends a line to the log, if there is one."""
    if log is not None:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def tried(mutant: Mutant) -> str:
    """What became of a mutant, in words. Raises RuntimeError where it cannot be tried."""
    begin = time.monotonic()
    with copy() as tree:
        found = python(tree, ["-c", "import gspo; print(gspo.__file__)"])[1].strip()
        if not found.startswith(f"{tree / 'src'}{os.sep}"):
            raise RuntimeError(f"{PYTHON} imports {found}, and not the gspo of the copy {tree}")
        path = tree / mutant.file
        path.write_text(mutant.changed(path.read_text(encoding="utf-8")), encoding="utf-8")
        folder = mirror(mutant, tree)
        if test := (failing(tree, folder) if folder else "") or failing(tree):
            return f"killed by {test} in {time.monotonic() - begin:.0f} s"
    return f"SURVIVED in {time.monotonic() - begin:.0f} s"


@contextlib.contextmanager
def copy() -> Iterator[Path]:
    """A copy of the tree, tracked files and new ones, as long as the context lasts."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="gspo-mutant-", ignore_cleanup_errors=True) as scratch:
        tree = Path(scratch).resolve() / "tree"
        for name in dict.fromkeys(filter(None, os.fsdecode(listed.stdout).split("\0"))):
            if os.path.lexists(ROOT / name):  # a tracked file may have been deleted
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        yield tree


def mirror(mutant: Mutant, tree: Path) -> str:
    """The folder of the tests of the package that a mutant changes; "" for a file that lies in gspo itself."""
    package = Path(mutant.file).relative_to("src/gspo")
    folders = [folder for folder in package.parents if folder.name and (tree / "tests" / folder).is_dir()]
    return f"tests/{folders[0].as_posix()}" if folders else ""


def failing(tree: Path, folder: str = "") -> str:
    """The first test that fails, "" where all pass. folder: of its tests alone, which may have none in the core. Raises
    RuntimeError where pytest itself fails.
    """
    status, text = python(tree, [*TESTS, *filter(None, [folder])])
    named = re.search(r"^(?:FAILED|ERROR|SUBFAILED(?:\(.*?\)|\[.*?\])*) (tests/.+?)(?: - |$)", text, re.MULTILINE)
    if named is not None and status in (FAILED, COLLECTING):
        return named[1]
    if status not in (PASSED, FAILED) and not (status == NONE and folder):
        raise RuntimeError(f"pytest {folder} ended with status {status}:\n{text[-3000:]}")
    return ""


def python(tree: Path, arguments: list[str]) -> tuple[int, str]:
    """Runs Python with the gspo of a copy. Returns its exit status and all that it says. Whatever ends the wait ends it and
    all that it started.
    """
    env = os.environ | {"PYTHONPATH": str(tree / "src")}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        process = subprocess.Popen(
            [PYTHON, *arguments], cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait()
        except BaseException:
            for number in (signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(process.pid, number)
                    process.wait(END)
            raise
        out.seek(0)
        return process.returncode, out.read()


if __name__ == "__main__":
    sys.exit(main())
