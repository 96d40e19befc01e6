"""Seconds of one update's forward and backward pass: gspo against TRL's GRPOTrainer, in turns, at the shapes of update.py.

Each program is a process of its own with the same model (models.py), the same completions, GSPO's loss and as many threads.
Nothing is clipped. The gradients of both must agree, so that both did the same work. At least 5 repeats; the first run
installs TRL into .bench-trl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from models import CPU, MODELS
from paired import THREADS, Worker, median_interval, take_turns
from trl_step import HERE, trl_environment
from update import SHAPES

COMPILED = {"torch_compile": True}
CLOSE = 1e-3  # of the gradients, as a share of the largest: float32 in another order


def commands(model: Path, shape: tuple[int, ...], threads: int, compiled: bool) -> dict[str, list[str]]:
    """What starts each worker."""
    arguments = [str(model), "--shape", *map(str, shape), "--threads", str(threads)]
    by_name = {"gspo": [sys.executable, str(HERE / "ours_update.py"), *arguments]}
    by_name["TRL"] = [str(trl_environment()), str(HERE / "trl_update.py"), *arguments]
    if compiled:
        by_name["TRL, torch_compile"] = [*by_name["TRL"], "--trial", json.dumps(COMPILED)]
    return by_name


def measure(starts: dict[str, list[str]], folder: Path, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """The updates of each worker, in turns after two unrecorded ones. Raises RuntimeError where the gradients differ."""
    workers: list[Worker] = []
    try:
        for i, (name, command) in enumerate(starts.items()):
            workers.append(Worker(name, command, folder / f"worker{i}.log"))
        by_name = take_turns(workers, repeats, 2)
    finally:
        for worker in workers:
            worker.close()
    expected = by_name["gspo"][0]["gradients"]
    for name, steps in by_name.items():
        for step in steps:
            if not close(step["gradients"], expected):
                raise RuntimeError(f"the gradients of {name} and gspo differ: the programs did not do the same work")
    return by_name


def close(ours: list[float], theirs: list[float]) -> bool:
    """Whether these are the same numbers up to rounding."""
    room = CLOSE * max(map(abs, theirs))
    return len(ours) == len(theirs) and all(abs(a - b) <= room for a, b in zip(ours, theirs))


def compare(by_name: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """By TRL's variant: the median of the ratios of paired seconds, its interval, and the seconds of both."""
    lines = {}
    seconds = {name: [step["seconds"] for step in steps] for name, steps in by_name.items()}
    for name, theirs in seconds.items():
        if name != "gspo":
            ratios = [b / a for a, b in zip(seconds["gspo"], theirs, strict=True)]
            low, high, _ = median_interval(ratios)
            lines[name] = {"ratio": statistics.median(ratios), "low": low, "high": high}
            lines[name] |= {"seconds": statistics.median(seconds["gspo"]), "other_seconds": statistics.median(theirs)}
    return lines


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--models", nargs="+", default=["dense", "mixture"], choices=["dense", "mixture"])
    parser.add_argument("--shapes", type=int, nargs="+", default=list(range(len(SHAPES))), help=f"indices of {SHAPES}")
    parser.add_argument("--compiled", action=argparse.BooleanOptionalAction, default=shutil.which("g++") is not None,
                        help="TRL with torch_compile too, which takes a C++ compiler and a minute a shape")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("runs/bench/update_trl.json"), help="file for all the numbers")
    options = parser.parse_args()
    if options.repeats < 5:
        parser.error(f"--repeats {options.repeats}: at least 5")
    results: list[dict[str, Any]] = []
    for kind in options.models:
        with tempfile.TemporaryDirectory() as scratch:
            model = Path(scratch) / "model"
            MODELS["3m"][kind](CPU).save(model)
            for shape in (SHAPES[i] for i in options.shapes):
                starts = commands(model, shape, options.threads, options.compiled)
                for name, line in compare(measure(starts, Path(scratch), options.repeats)).items():
                    results.append({"model": kind, "shape": shape, "against": name, "repeats": options.repeats} | line)
                    print(
                        f"{kind}, {shape}, {name}: {line['ratio']:.2f} [{line['low']:.2f}, {line['high']:.2f}]", flush=True
                    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"threads": options.threads, "results": results}, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
