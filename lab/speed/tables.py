"""The tables of docs/performance.md and lab/speed.md, from the figures of results.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from readings import Figure

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "performance.md", ROOT / "lab" / "speed.md"
TABLE = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- end -->)", re.S)
Column = tuple[str, Callable[[Figure], str]]


def number(value: float | None) -> str:
    """Three digits that count, with thousands set apart: 12,600, 0.184, 1.50; nothing for None."""
    if value is None:
        return ""
    digits = next((digits for least, digits in ((100, 0), (10, 1), (1, 2)) if abs(value) >= least), 3)
    return f"{float(f'{value:.3g}'):,.{digits}f}"


def of(key: str) -> Callable[[Figure], str]:
    """A number of the figure."""
    return lambda row: number(row.get(key))


def ends(row: Figure) -> str:
    """The cost at the smallest and at the largest size."""
    unit = "seconds" if "seconds" in row else "GiB"
    sizes = sorted(row[unit], key=int)
    small, large = (f"{number(row[unit][size])} at {int(size):,}" for size in (sizes[0], sizes[-1]))
    return f"{small}, {large} ({'s' if unit == 'seconds' else unit})"


SECONDS: Column = ("seconds", of("seconds"))
# What the ratio is, and the columns beside it.
COLUMNS: dict[str, tuple[str, list[Column]]] = {
    "update": ("times as fast", [SECONDS, ("of the roofline", lambda row: f"{row['roofline']:.0%}")]),
    "update_trl": ("times as fast", [SECONDS, ("TRL's seconds", of("other_seconds"))]),
    "rollout_step": ("times as fast", [SECONDS, ("sampling", of("sample")), ("training", of("train"))]),
    "head": ("seconds over the base's", [("base", lambda row: row["against"]), SECONDS, ("GiB", of("GiB"))]),
    "sampling": ("times as many tokens a second", [("tokens a second", of("tokens_per_second"))]),
    "scaling": ("slope", [("cost", ends)]),
    "engines": (
        "times as many tokens a second",
        [
            ("embedded, tokens a second", lambda row: number(row["rates"]["embedded"])),
            ("vLLM", lambda row: number(row["rates"]["vLLM"])),
        ],
    ),
}
# A second comparison of the same row: how its name follows from the first one's, and the titles of its columns.
SECOND: dict[str, tuple[str, str, list[Column]]] = {
    "update_trl": (r"\1, torch_compile", "times as fast as TRL, torch_compile", [("its seconds", of("other_seconds"))]),
    "rollout_step": (r"\1, torch_compile", "times as fast as TRL, torch_compile", []),
    "sampling": (r"continuous\2", "continuous batching: times as many", [("tokens a second", of("tokens_per_second"))]),
}


def cells(row: Figure | None, columns: list[Column]) -> list[str]:
    """The ratio of a figure, its interval, and its other columns; empty cells for None."""
    if row is None:
        return [""] * (len(columns) + 2)
    alone = row["low"] == row["high"] == row["value"] == 1.0  # the base of a comparison
    between = "" if alone else f"{row['low']:z.2f} to {row['high']:z.2f}"
    return [f"{row['value']:z.2f}", between, *(show(row) for _, show in columns)]


def table(group: str, figures: dict[str, Figure]) -> str:
    """The figures of a group as a table."""
    if not figures:
        return "Not measured yet.\n"
    ratio, columns = COLUMNS[group]
    pattern, title, more = SECOND.get(group, ("", "", []))
    names = {name: re.sub(r"^((?:embedded)?(.*))$", pattern, name) for name in figures}
    titles = ["case", ratio, "interval", *(title for title, _ in columns)]
    titles += [title, "interval", *(title for title, _ in more)] if pattern else []
    rows = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for name, row in figures.items():
        if name in names.values() and pattern:  # it stands beside another
            continue
        second = cells(figures.get(names[name]), more) if pattern else []
        rows.append("| " + " | ".join([name, *cells(row, columns), *second]) + " |")
    return "\n".join(rows) + "\n"


def machine(results: dict[str, Any]) -> str:
    """Where, when and with what it was measured."""
    facts = results.get("machine")
    if not facts:
        return "Not measured yet.\n"
    days = sorted(set(results.get("dates", {}).values()) or {results["date"]})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    fixed = ("processor", "cores", "matmul_gflops_2_threads", "gpu")
    versions = ", ".join(f"{name} {version}" for name, version in facts.items() if name not in fixed)
    rate = f"{facts['matmul_gflops_2_threads']} GFLOP/s in a large float32 product on two threads"
    return f"Measured on {day}: {facts['processor']}, {facts['cores']} cores, {rate}; {versions}.\n"


def write(results: dict[str, Any], pages: Iterable[Path] = PAGES) -> None:
    """Fills in what stands between the marks of the pages."""

    def filled(match: re.Match[str]) -> str:
        group = match[2]
        text = machine(results) if group == "machine" else table(group, results["figures"].get(group, {}))
        return match[1] + text + match[3]

    for page in pages:
        page.write_text(TABLE.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")
