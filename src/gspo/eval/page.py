"""The page of an evaluation: figures, a table by problem, the comparison, and what was done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gspo.eval.results import LIKE, NEEDS_TWO, THESE, describe_sizes, percent_with_interval, unscored
from gspo.report.chart import Chart, ChartMark
from gspo.report.html import write_figures, write_page
from gspo.safe import own_folder
from gspo.statistics.intervals import Interval

MOST = 2000  # problems in the table


def write(
    folder: Path,
    manifest: Mapping[str, Any],
    made: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    words: Sequence[str] = (),
) -> Path:
    """Writes benchmark.html and its figures. words: of the comparison and the rating. Returns its path."""
    n = made["samples"]
    title = f"{manifest['title']}: {percent_with_interval(made[LIKE])}"
    path, charts = folder / "benchmark.html", charts_of(made, rows)
    write_figures(charts, own_folder(folder / "figures"))
    write_page(
        path,
        "eval/page.html",
        title=title,
        manifest=manifest,
        leads=[_lead(made, manifest), *words],
        tiles=_tiles(made),
        intervals=[(f"avg@{n}, {which}", _interval(made[which])) for which in (THESE, LIKE)],
        charts=charts,
        estimates=_estimates(made),
        like=LIKE,
        problems=_problems(rows),
        whole_manifest=json.dumps(manifest, indent=1, ensure_ascii=False),
    )
    return path


def _interval(value: Interval) -> str:
    return percent_with_interval(value) + (f"; an interval {NEEDS_TWO}" if math.isnan(value.low) else "")


def _lead(made: Mapping[str, Any], manifest: Mapping[str, Any]) -> str:
    text = describe_sizes(made) + (f"; mean length {made['tokens']:,.0f} tokens." if made["tokens"] > 0 else ".")
    if made["truncated"]:
        text += f" {100 * made['truncated']:.1f} % of the replies were cut off at the length limit."
    if made["failed"]:
        text += f" {unscored(made)}."
    if driver := manifest.get("scoring", {}).get("sandbox"):
        text += " Programs ran in no sandbox." if driver == "none" else f" Programs ran in the sandbox '{driver}'."
    return text


def _tiles(made: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    n = made["samples"]
    last = max(made["pass"])
    cells = [(f"avg@{n}", f"{100 * made['avg']:.1f} %", "share of right replies")]
    if last > 1:
        cells.append((f"pass@{last}", f"{100 * made['pass'][last].mean:.1f} %", "problems with a right reply"))
    if "maj" in made and last > 1:
        cells.append((f"maj@{last}", f"{100 * made['maj'][last].mean:.1f} %", "problems whose vote is right"))
    cells.append(("Truncated", f"{100 * made['truncated']:.1f} %", "replies at the length limit"))
    if "answered" in made:
        cells.append(("With an answer", f"{100 * made['answered']:.1f} %", "replies with a box or tags"))
    return cells


def _estimates(made: Mapping[str, Any]) -> dict[str, Any] | None:
    if made["samples"] < 2:
        return None
    names = [name for name in ("pass", "maj") if name in made]
    rows = [(f"k = {k}", *(percent_with_interval(made[name][k]) for name in names)) for k in made["pass"]]
    return {"columns": ("replies", *(f"{name}@k" for name in names)), "rows": rows}


def _problems(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answers = "votes" in rows[0]
    head = ("problem", "right", *(("answer", "majority") if answers else ()), "truncated", "mean length", "not scored")
    lines = []
    for row in rows[:MOST]:
        own = (row["answer"][:60], str(row["majority"] or "")[:60]) if answers else ()
        some = [str(row[name]) if row[name] else "" for name in ("truncated", "failed")]
        length = f"{row['tokens']:,.0f}" if row["tokens"] > 0 else ""
        lines.append((row["id"], f"{row['correct']} of {row['n']}", *own, some[0], length, some[1]))
    return {"columns": head, "rows": lines, "left": max(0, len(rows) - MOST)}


def charts_of(made: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The figures: pass@k and maj@k against k, if there are several replies; the problems by their share of right ones."""
    found = []
    if made["samples"] > 1:
        marks: list[ChartMark] = []
        for number, name in enumerate(name for name in ("pass", "maj") if name in made):
            mean, low, high = np.array([(point.mean, point.low, point.high) for point in made[name].values()]).T
            at = np.arange(len(mean))
            marks += [ChartMark("", at, high, low, number, "band"), ChartMark(f"{name}@k", at, mean, None, number)]
        what = "at least one is right (pass@k)" + ("; the answer of most is right (maj@k)" if "maj" in made else "")
        caption, ks = f"Of k replies {what}. Band: 95 %, {LIKE}.", list(map(str, made["pass"]))
        found.append(Chart("estimates", "Of k replies", "share of problems", caption, marks, "k", top=1.02, names=ks))
    shares = np.array(sorted((row["correct"] / row["n"] for row in rows), reverse=True))
    edges = np.repeat(np.arange(len(shares) + 1) + 0.5, 2)[1:-1]
    steps = [ChartMark("", edges, np.repeat(shares, 2), np.zeros(len(edges)), 0, "area")]
    title, caption = "Problems, from easy to hard", "Of each problem the share of its replies that are right."
    return [*found, Chart("problems", title, "share of right replies", caption, steps, "problem", top=1.02)]
