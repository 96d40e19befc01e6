"""Two programs as long-lived processes that take turns, so that what slows the machine slows both. Standard library only.

A worker reads the line `step` on its standard input, does one step, and answers with one line of JSON on its standard
output: `seconds` and its parts. The end of its input ends it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

THREADS = 2


class Commands:
    """The worker's side. Make it before heavy imports: whatever the libraries print goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def wait(self) -> bool:
        """Wait for the next command; False when there will be none."""
        return sys.stdin.readline().strip() == "step"

    def answer(self, result: dict[str, Any]) -> None:
        """Send one line of JSON."""
        print(json.dumps(result), file=self._answers, flush=True)


def peak_gib() -> float:
    """Peak resident memory of this process until now, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def update_options(doc: str) -> argparse.ArgumentParser:
    """What every worker that does the passes of an update is told."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("--shape", type=int, nargs=4, required=True, help="P, R, G and the number of prompts")
    parser.add_argument("--threads", type=int, default=THREADS)
    return parser


class Worker:
    """The driver's side: a process that does one step at a time. `log` is the file for what it prints."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self._path = name, log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "false"},
            )

    def step(self) -> dict[str, Any]:
        """One step. Raises RuntimeError with the end of the worker's log when it died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        try:
            print("step", file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not line:
            tail = "".join(self._path.read_text(encoding="utf-8").splitlines(keepends=True)[-15:])
            raise RuntimeError(f"the {self.name} worker ended ({self._path}):\n{tail}")
        return json.loads(line)

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def take_turns(workers: list[Worker], repeats: int, warm_up: int) -> dict[str, list[dict[str, Any]]]:
    """`repeats` steps of each worker, after `warm_up` unrecorded ones. Who goes first changes from round to round."""
    steps: dict[str, list[dict[str, Any]]] = {worker.name: [] for worker in workers}
    for i in range(warm_up + repeats):
        first = i % len(workers)
        for worker in workers[first:] + workers[:first]:
            result = worker.step()
            if i >= warm_up:
                steps[worker.name].append(result)
            print(f"round {i - warm_up + 1}: {worker.name} {result['seconds']:.2f} s", file=sys.stderr, flush=True)
    return steps


def median_interval(values: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """Lowest and highest value of an interval for the median, and its true coverage.

    The k-th smallest and k-th largest value, with the largest k whose coverage is at least `level` (binomial; no
    assumption about the distribution). Fewer than 6 values cannot reach 95 %: then it is the whole range.
    """
    n, ordered = len(values), sorted(values)
    k = 1
    while k + 1 <= n // 2 and _coverage(n, k + 1) >= level:
        k += 1
    return ordered[k - 1], ordered[n - k], _coverage(n, k)


def _coverage(n: int, k: int) -> float:
    """How often the k-th smallest and k-th largest of n values enclose the median."""
    return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n


def medians(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Median of every number that the steps report."""
    return {key: statistics.median(s[key] for s in steps) for key in steps[0] if isinstance(steps[0][key], (int, float))}
