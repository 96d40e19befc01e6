"""All benchmarks with one command: `make bench`.

Runs each script, collects its ratios in lab/speed/results.json, and writes the pictures and tables of docs/performance.md
and lab/speed.md. With `--check` it measures again, writes nothing, and fails where a ratio is more than 15 % worse than the
committed one (a slope: 0.15) and outside its interval. `--only NAME ...` runs some; the figures of the others stay.
`--tables` measures nothing and writes the pages.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pictures
import readings
import tables
from readings import Figure

HERE = Path(__file__).resolve().parent
RESULTS, RAW = HERE / "results.json", HERE.parents[1] / "runs" / "bench"
VLLM = HERE.parents[1] / ".venv-vllm" / "bin" / "python"  # `make test-vllm` makes it

# Arguments of each script, and what reads its output.
SCRIPTS: dict[str, tuple[list[str], Callable[[Any], Iterator[tuple[str, Figure]]]]] = {
    "update": (["--repeats", "7"], readings.of_update),
    "update_trl": (["--repeats", "7"], readings.of_update_trl),
    "rollout_step": (["--repeats", "8"], readings.of_rollout_step),
    "sampling": (["--repeats", "5"], readings.of_sampling),
    "head": (["--repeats", "5", "--tokens", "1024", "4096", "16384", "--threads", "2"], readings.of_head),
    "scaling": (["--repeats", "5"], readings.of_scaling),
    "engines": (["--repeats", "7"], readings.of_engines),  # one thread: vLLM's server needs the other core
}


def measure(name: str, vllm: Path | None, more: list[str]) -> dict[str, Figure]:
    """Runs a script; its figures by name."""
    arguments, read_figures = SCRIPTS[name]
    out = RAW / f"{name}.json"
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments, *more, "--out", str(out)]
    print(f"== {name}", flush=True)
    subprocess.run(command + (["--python", str(vllm)] if name == "engines" else []), check=True)
    return dict(read_figures(json.loads(out.read_text(encoding="utf-8"))))


def described(vllm: Path | None) -> dict[str, Any]:
    """The machine and the versions of what is compared."""
    from machine import describe
    from trl_step import TRL

    versions: dict[str, Any] = describe() | {"trl": TRL.partition("==")[2]}
    if vllm:
        ask = (
            "import importlib.metadata as m; print(next(d.version for d in m.distributions() if d.name.startswith('vllm')))"
        )
        versions["vllm"] = subprocess.run([vllm, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    return versions


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line; what follows `--` goes to the scripts."""
    argv = sys.argv[1:]
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), help="run these alone")
    parser.add_argument("--check", action="store_true", help="compare with the results and write nothing")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write tables and pictures")
    parser.add_argument(
        "--vllm", type=Path, default=VLLM if VLLM.exists() else None,
        help="interpreter whose environment has vLLM (.venv-vllm's where there is one); else that comparison is left out",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="file of the figures; the page shows the committed ones until --tables"
    )
    options = parser.parse_args(argv[:cut])
    if options.only and "engines" in options.only and not options.vllm:
        parser.error("engines needs vLLM: --vllm PYTHON, or make test-vllm, which installs it into .venv-vllm")
    return options, argv[cut + 1 :]


def show(results: dict[str, Any]) -> None:
    """Writes the page."""
    tables.write(results)
    pictures.draw(results["figures"])


def main() -> None:
    """Measure all, or compare with what is committed."""
    options, more = arguments()
    file: Path = options.results
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"figures": {}}
    if options.tables:
        show(results)
        return
    RAW.mkdir(parents=True, exist_ok=True)
    bad: list[str] = []
    compared = 0
    for name in options.only or [name for name in SCRIPTS if name != "engines" or options.vllm]:
        figures = measure(name, options.vllm, more)
        if options.check:
            before = results["figures"].get(name, {})
            bad += readings.regressions(name, before, figures)
            compared += len(before.keys() & figures.keys())
            continue
        dates = results.setdefault("dates", dict.fromkeys(results["figures"], results.pop("date", "")))
        results["machine"], dates[name] = described(options.vllm), str(datetime.date.today())
        results["figures"][name] = figures
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        if file == RESULTS:
            show(results)
    if options.check:
        print("\n".join(bad) if bad else f"none of {compared} figures is more than 15 % worse")
        sys.exit(bool(bad) or not compared)


if __name__ == "__main__":
    main()
