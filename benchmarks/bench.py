"""All benchmarks with one command: `make bench`.

Runs each script, collects its ratios in benchmarks/results.json and writes the tables of docs/performance.md. With `--check`
it measures again, writes nothing, and fails where a ratio is more than 15 % worse than the committed one and outside its
interval. `--only NAME ...` runs some; the figures of the others stay. `--tables` only writes the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results.json", HERE.parent / "docs" / "performance.md"
RAW = HERE.parent / "runs" / "bench"
TABLE = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.S)
WORSE = 0.15
Figure = dict[str, Any]  # value, low, high, repeats, better: "higher" or "lower"; and what else the table shows


def figure(value: float, low: float, high: float, repeats: int, better: str = "higher", **more: Any) -> Figure:
    """One figure with its interval."""
    return {"value": value, "low": low, "high": high, "repeats": repeats, "better": better} | more


def of_update(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Padded rows over `auto`, by model and shape."""
    for one in raw["results"]:
        if one["layout"] != "padded":
            P, R, G, _ = one["shape"]
            more = {"seconds": one["seconds"], "roofline": one["roofline"]}
            yield f"{one['model']}, P {P} R {R} G {G}", figure(one["ratio"], one["low"], one["high"], one["repeats"], **more)


def of_rollout_step(raw: Any) -> Iterator[tuple[str, Figure]]:
    """TRL's step over ours."""
    for name, own in raw["summary"].items():
        parts = {part: own[part] for part in ("seconds", "sample", "train")}
        for other, s in own["speed_up"].items():
            yield f"{name} against {other}", figure(s["median"], s["low"], s["high"], len(raw["steps"][name]), **parts)


def of_sampling(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Our tokens a second over those of `generate`."""
    for one in raw["results"]:
        for engine, own in one["engines"].items():
            if engine != "generate":
                name = f"{engine}, {one['model']}, {one['case']}, {one['rows']} rows"
                rate = {"tokens_per_second": own["tokens_per_second"]}
                yield name, figure(own["ratio_to_generate"], own["ratio_low"], own["ratio_high"], raw["repeats"], **rate)


def of_head(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Seconds over those of all logits at once, or of checkpointed chunks where these do not fit."""
    for one in raw["results"]:
        for name, own in one["variants"].items():
            base = next((key for key in ("to_full", "to_chunks") if key in own), None)
            if name == "full" or base is None:
                continue
            low, high = own["interval"]
            more = {"against": base[3:], "seconds": own["seconds"], "GiB": own["GiB"]}
            yield f"{name}, {one['tokens']} tokens", figure(own[base], low, high, raw["repeats"], "lower", **more)


def of_scaling(raw: Any) -> Iterator[tuple[str, Figure]]:
    """Slopes of log time."""
    for name, own in raw["results"].items():
        yield (
            name,
            figure(own["slope"], own["low"], own["high"], own["repeats"], "lower", seconds=own["seconds"], GiB=own["GiB"]),
        )


def of_engines(raw: Any) -> Iterator[tuple[str, Figure]]:
    """The embedded sampler's tokens a second over vLLM's."""
    for one in raw["results"]:
        name = f"{one['model']}, {one['rows']} rows"
        yield name, figure(one["ratio"], one["low"], one["high"], raw["repeats"], rates=one["rates"])


SCRIPTS: dict[str, tuple[list[str], Callable[[Any], Iterator[tuple[str, Figure]]]]] = {
    "update": (["--repeats", "7"], of_update),
    "rollout_step": (["--repeats", "8"], of_rollout_step),
    "sampling": (["--repeats", "5"], of_sampling),
    "head": (["--repeats", "5", "--tokens", "1024", "4096", "--threads", "2"], of_head),
    "scaling": (["--repeats", "5"], of_scaling),
    "engines": (["--repeats", "7", "--threads", "2"], of_engines),
}


def measure(name: str, vllm: str | None) -> dict[str, Figure]:
    """Runs a script; its figures by name."""
    arguments, read = SCRIPTS[name]
    out = RAW / f"{name}.json"
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--out", str(out)]
    print(f"== {name}", flush=True)
    subprocess.run(command + (["--python", vllm] if name == "engines" and vllm else []), check=True)
    return dict(read(json.loads(out.read_text(encoding="utf-8"))))


def worse(before: Figure, now: Figure) -> bool:
    """Whether a figure is more than 15 % worse than it was, and beyond its interval of then."""
    if before["better"] == "higher":
        return now["value"] < (1 - WORSE) * before["value"] and now["value"] < before["low"]
    return now["value"] > (1 + WORSE) * before["value"] and now["value"] > before["high"]


def table(figures: dict[str, Figure]) -> str:
    """The figures of a script as a table."""
    if not figures:
        return "Not measured yet.\n"
    rows = ["| | ratio | interval | |", "|---|---|---|---|"]
    for name, one in figures.items():
        more = ", ".join(
            f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in one.items()
            if key not in ("value", "low", "high", "repeats", "better") and not isinstance(value, dict)
        )
        rows.append(f"| {name} | {one['value']:.2f} | {one['low']:.2f} to {one['high']:.2f} | {more} |")
    return "\n".join(rows) + "\n"


def write_tables(results: dict[str, Any]) -> None:
    """Fills in the tables of docs/performance.md."""
    text = PAGE.read_text(encoding="utf-8")
    filled = TABLE.sub(lambda m: m[1] + table(results["figures"].get(m[2], {})) + m[3], text)
    PAGE.write_text(filled, encoding="utf-8")


def main() -> None:
    """Measure all, or compare with what is committed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), help="run these alone")
    parser.add_argument("--check", action="store_true", help="compare with results.json and write nothing")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write the tables")
    parser.add_argument("--vllm", help="interpreter whose environment has vLLM; without it that comparison is left out")
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"figures": {}}
    names = options.only or [name for name in SCRIPTS if name != "engines" or options.vllm]
    if options.tables:
        write_tables(results)
        return
    RAW.mkdir(parents=True, exist_ok=True)
    bad = []
    for name in names:
        found, before = measure(name, options.vllm), results["figures"].get(name, {})
        if options.check:
            bad += [f"{name}: {key}: {before[key]['value']:.2f} -> {one['value']:.2f}"
                    for key, one in found.items() if key in before and worse(before[key], one)]  # fmt: skip
            continue
        from machine import describe

        results["machine"], results["date"] = describe(), str(datetime.date.today())
        results["figures"][name] = found
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_tables(results)
    if options.check:
        print("\n".join(bad) if bad else "no ratio is more than 15 % worse")
        sys.exit(bool(bad))


if __name__ == "__main__":
    main()
