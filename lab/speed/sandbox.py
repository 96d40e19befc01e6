"""What a sandbox costs: CPU a reply and a test, beyond the program's own, and what 2,000 replies leave behind.

    python lab/speed/sandbox.py [--replies 2000]

Linux alone. All processes of a sandbox are counted: this one adopts and reaps those that lose their parent.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import tempfile
import time
from pathlib import Path

from gspo.sandbox.image import SCRATCH
from gspo.sandbox.open import Sandbox, open_sandbox
from gspo.sandbox.types import Case, Limits, Program

SUBREAPER = 36  # of prctl
ADD = Program("a, b = map(int, input().split())\nprint(a + b)")
ENDS = (
    "print(1)",
    "while True: pass",
    "import os; os.kill(os.getpid(), 9)",
    "x = bytearray(1 << 31)",
    "open('f', 'w').write('x'); raise ValueError",
)


def reaped() -> None:
    """Waits for every child that is left."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def seconds() -> float:
    """CPU seconds of this process and all that it has reaped."""
    reaped()
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def cost(sandbox: Sandbox, tests: int, repeats: int) -> float:
    """CPU milliseconds for a reply with so many tests."""
    begin = seconds()
    for _ in range(repeats):
        outcomes = sandbox.run(ADD, [Case("1 2")] * tests)
        assert [outcome.stdout for outcome in outcomes] == ["3\n"] * tests
    return (seconds() - begin) / repeats * 1000


def left() -> dict[str, int]:
    """Processes, descriptors, folders and KiB of memory of this process."""
    reaped()
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"{SCRATCH}{os.getpid()}-")]
    return {
        "processes": len(children), "descriptors": len(os.listdir("/proc/self/fd")), "folders": len(folders),
        "KiB": memory,
    }  # fmt: skip


def main() -> None:
    """Measures both sandboxes and prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replies", type=int, default=2000, help="replies that are scored to see what is left of them")
    replies = parser.parse_args().replies
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for driver in ("bwrap", "landlock"):
        sandbox = open_sandbox(driver)  # type: ignore[arg-type]
        cost(sandbox, 1, 3)
        one, many = cost(sandbox, 1, 20), cost(sandbox, 51, 5)
        limits = Limits(seconds=0.05, memory=1 << 28)
        before, begin = left(), time.perf_counter()
        for i in range(replies):
            list(sandbox.run(Program(ENDS[i % len(ENDS)]), [Case("")], limits))
        figures = {
            "sandbox": driver,
            "ms of CPU a reply": round(one, 1),
            "ms of CPU a test": round((many - one) / 50, 2),
            "left before": before,
            f"left after {replies}": left(),
            "seconds": round(time.perf_counter() - begin, 1),
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
