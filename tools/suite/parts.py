"""What CI runs beside the core, and what the nightly run runs: `python -m tools.suite.parts --help`.

CI builds the site, and runs a part a day: half of `make test-all`, and one environment. A change below the paths of
environments has those run instead of the day's, as many as fit into the time that CI has. The others are named: run them
before you push.
"""

import argparse
import datetime
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARES = 2
"""Days in which CI runs the whole of `make test-all`."""
LIMIT = 17
"""Minutes that CI has for environments, by estimates that are high: with 14 of them CI took 14 minutes in all."""
ENVIRONMENTS = {
    "vllm, first half": (
        15, ["make test-vllm SHARE=0/2"],
        ["src/gspo/backends/vllm/", "tests/backends/vllm/engine/"],
    ),
    "vllm, second half": (
        17, ["make test-vllm SHARE=1/2"],
        ["src/gspo/backends/vllm/", "tests/backends/vllm/engine/"],
    ),
    "what each command needs": (
        16, ["make test-needs", "make wheel-test"],
        ["pyproject.toml", "constraints.txt", "src/gspo/config/needs.py", "tools/needs", "tools/wheel"],
    ),
    "a pretrained model": (
        10, ["make test-real", "make test-notebook"],
        ["src/gspo/demo/", "src/gspo/backends/hf/gguf", "src/gspo/recipes/", "examples/smollm2.ipynb", "examples/ten_lines",
         "tests/real/"],
    ),
    "ray": (10, ["make test-ray"], ["src/gspo/launch/ray_", "tests/launch/test_ray_", "tests/launch/ray_"]),
    "verifiers and benchmarks": (
        6, ["make test-verifiers", "make test-benchmarks"],
        ["src/gspo/agents/verifiers_", "tests/agents/test_verifiers_", "src/gspo/data/benchmarks/", "src/gspo/eval/"],
    ),
    "ART, trackers, parity and the suite for a GPU": (
        14, ["make test-art", "make test-trackers", "make test-parity", "make parity", "make gpu DRY=1"],
        [
            "src/gspo/agents/art_compat", "src/gspo/serving/art_backend", "tests/serving/test_art",
            "src/gspo/runs/trackers", "tests/runs/test_trackers",
            "src/gspo/objective/", "src/gspo/dropin", "examples/trl_gspo", "examples/verl_gspo", "lab/speed/parity",
            "tests/gpu/",
        ],
    ),
}  # fmt: skip
"""Minutes on two quiet cores (estimates), commands, and the paths whose change has them run."""
SESSION = "4 hours"
"""What was committed within this time before the newest commit counts as the change, unless --base says otherwise."""


def git(*words):
    """What git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def changed(base):
    """The files that differ from `base`, a commit; without one, from the last commit before the change."""
    if not base:
        newest = datetime.datetime.fromisoformat(git("log", "-1", "--format=%cI"))
        hours = int(SESSION.split()[0])
        before = (newest - datetime.timedelta(hours=hours)).isoformat()
        base = git("rev-list", "-1", f"--before={before}", "HEAD") or git("rev-list", "--max-parents=0", "HEAD")
    return git("diff", "--name-only", base.split()[0], "HEAD").splitlines()


def of_day(day, files):
    """The names of the environments that are tested on the day-th day of the year, where `files` have changed, and of those
    that have changed but do not fit into the day.
    """
    names = [*ENVIRONMENTS]
    names = names[day % len(names) :] + names[: day % len(names)]
    touched = [name for name in names if any(file.startswith(tuple(ENVIRONMENTS[name][2])) for file in files)]
    taken, left = [], LIMIT
    for name in touched or names[:1]:
        if ENVIRONMENTS[name][0] <= left:
            taken.append(name)
            left -= ENVIRONMENTS[name][0]
    return taken, [name for name in touched if name not in taken]


def run(commands, done=None):
    """Runs commands of a shell one after the other, all of them. `done`: a file of those that succeeded before, which are
    not run again. Returns those that failed.
    """
    before = done.read_text().splitlines() if done and done.exists() else []
    failed = []
    for command in commands:
        if command in before:
            print(f"=== {command}: passed before", flush=True)
            continue
        print(f"=== {command}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(command, shell=True, cwd=ROOT).returncode
        print(f"=== {command}: {'passed' if not status else 'FAILED'} after {time.monotonic() - begin:.0f} s", flush=True)
        if status:
            failed.append(command)
        elif done:
            with done.open("a") as file:
                file.write(f"{command}\n")
    return failed


def of_ci(day, base):
    """What CI runs on a day beside `make check` and `make test`, and what it leaves out that has changed."""
    taken, left = ([line for name in names for line in ENVIRONMENTS[name][1]] for names in of_day(day, changed(base)))
    return ["make site", f"make test-all SHARE={day % SHARES}/{SHARES}", *taken], left


def of_night():
    """All there is."""
    rest = [f"make test-all SLOW=1 SHARE={number}/{SHARES}" for number in range(SHARES)]
    others = [f"{line} SLOW=1" for _, lines, _ in ENVIRONMENTS.values() for line in lines]
    return ["make check", "make site", "make test", *rest, *others, "make test-ray-vllm SLOW=1", "make campaign"]


def main():
    """Runs what a day or the night wants."""
    parser = argparse.ArgumentParser(prog="python -m tools.suite.parts", description=__doc__)
    parser.add_argument("which", choices=("ci", "nightly"))
    parser.add_argument("--day", type=int, default=datetime.date.today().timetuple().tm_yday, help="of the year; today")
    parser.add_argument("--base", default="", help=f"commit to compare with; the last {SESSION} before the newest commit")
    parser.add_argument("--list", action="store_true", help="print the commands, and run none")
    given = parser.parse_args()
    commands, left = of_ci(given.day, given.base) if given.which == "ci" else (of_night(), [])
    print(*(f"=== not run in CI, though it has changed: {command}" for command in left), sep="\n", file=sys.stderr)
    if given.list:
        print(*commands, sep="\n")
        return 0
    done = None
    if given.which == "nightly":  # what passed for this commit is not run again
        done = ROOT / ".nightly" / git("rev-parse", "HEAD")
        done.parent.mkdir(exist_ok=True)
    failed = run(commands, done)
    print(*(f"FAILED: {command}" for command in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
