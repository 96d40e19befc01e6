"""What a study leaves: results.csv, results.json and compare.html."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo.compare.analysis import MEANS
from gspo.compare.measures import NO_SIGN, UNBOUNDED, better, bounds
from gspo.compare.spec import Study
from gspo.compare.terms import describe
from gspo.report.chart import Chart
from gspo.report.html import write_page
from gspo.runs.log import finite
from gspo.safe import replace_file
from gspo.statistics.intervals import interval, over_seeds, paired
from gspo.statistics.verdicts import spell, verdict

CellRow = dict[str, Any]
MEASURES = ("reward", "mean", "metric")
BESIDE = {"fall": NO_SIGN, "seconds": NO_SIGN, "unscored": (0.0, 1.0)} | {
    name: bounds(MEANS[name], ()) for name in ("clipped", "volatility", "seconds_train")
}
"""What stands beside a measure, and its bounds."""
COLUMNS = (
    *("setting", "variant", "seed", "status", "reason", "steps", "reward", "best", "fall", "mean", "metric"),
    *("collapsed", "tokens", "seconds"),
)


def write_rows(rows: Sequence[CellRow], folder: Path) -> None:
    """results.csv: a line a cell."""
    names = [*COLUMNS, *sorted({name for row in rows for name in row} - set(COLUMNS))]
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, names, restval="")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(folder / "results.csv", file.getvalue().encode("utf-8", "replace"))


def named(study: Study, by: str) -> tuple[str, str]:
    """The metric behind one of MEASURES, and what is taken of it, in words."""
    if by == "metric":
        return study.metric, f"{study.metric} at the end"
    return "reward", f"reward of the last {study.last} steps" if by == "reward" else "reward of all steps"


def summarise(
    study: Study, rows: Sequence[CellRow], by: str, limits: tuple[float, float] = UNBOUNDED
) -> list[dict[str, Any]]:
    """For each setting and variant: means and intervals of `by`, the paired difference to the baseline, and a verdict."""
    metric, words = named(study, by)
    width = limits[1] - limits[0]
    lines = []
    for setting in study.settings:
        done: dict[str, list[CellRow]] = {variant: [] for variant in (*study.variants(setting), study.baseline)}
        for row in rows:
            if (row["setting"], row["status"]) == (setting, "done"):
                done[row["variant"]].append(row)
        values = {variant: {row["seed"]: row[by] for row in here if by in row} for variant, here in done.items()}
        for variant in study.variants(setting):
            here = done[variant]
            line: dict[str, Any] = {
                "setting": setting, "variant": variant, "cells": len(here),
                "collapsed": sum(bool(row["collapsed"]) for row in here),
            }  # fmt: skip
            line[by] = over_seeds(list(values[variant].values()), limits)
            line |= {name: over_seeds([row[name] for row in here], ends) for name, ends in BESIDE.items()}
            if variant != study.baseline:
                both = {name: done[name] for name in (variant, study.baseline)}
                mine, other = (values[name] for name in both)
                line["difference"] = found = over_seeds(paired(mine, other), (-width, width))
                line["verdict"] = verdict(
                    variant, study.baseline, found, words, better(metric),
                    collapsed={name: (sum(bool(r["collapsed"]) for r in each), len(each)) for name, each in both.items()},
                    missing=sum(not math.isfinite(each[seed]) for each in (mine, other) for seed in mine.keys() & other),
                ) + _unscored(metric, both)  # fmt: skip
            lines.append(line)
    return lines


def _unscored(metric: str, done: Mapping[str, Sequence[CellRow]]) -> str:
    """What a mean reward leaves out, where it leaves something out: graders fail on bad completions above all."""
    held_out = metric.startswith("eval/")
    if not metric.removeprefix("eval/").startswith("reward"):
        return ""
    key, form, what = ("eval_unscored", ".1f", "held-out completions") if held_out else ("unscored", ".1%", "completions")
    shares = {name: interval([row[key] for row in rows]).mean for name, rows in done.items() if rows}
    if not any(share > 0 for share in shares.values()):
        return ""
    listed = ", ".join(f"{name} {share:{form}}" for name, share in shares.items())
    return f" Left out, as {what} without a reward: {listed}."


def write_summary(study: Study, summaries: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    """results.json: the same numbers as the page."""
    head = {"title": study.title, "plan": study.plan, "baseline": study.baseline}
    text = json.dumps(finite({**head, **summaries}), default=lambda value: finite(vars(value)), indent=1)
    replace_file(folder / "results.json", f"{text}\n".encode())


def write_html(
    study: Study,
    rows: Sequence[CellRow],
    summaries: Mapping[str, list[dict[str, Any]]],
    charts: Mapping[str, list[Chart]],
    folder: Path,
) -> Path:
    """compare.html. Returns its path."""
    missing = [
        f"{row['setting']} / {row['variant']} / seed {row['seed']}: {row['status']}. {row['reason']}"
        for row in rows
        if row["status"] != "done" or row["reason"]
    ]
    steps = {(r["setting"], r["variant"], r["seed"]): r["steps"] for r in rows if r["status"] == "done"}
    settings = []
    for setting in study.settings:
        tables = []
        for by, lines in summaries.items():
            here = [line for line in lines if line["setting"] == setting]
            tables.append((*_table(study, here, by), [line["verdict"] for line in here if "verdict" in line]))
        settings.append({"name": setting, "tables": tables, "charts": charts.get(setting, [])})
    path = folder / "compare.html"
    shares = {cell.config.guard.collapse for cell in study.cells}
    write_page(
        path,
        "compare/page.html",
        title=study.title,
        lead=f"{len(steps)} of {len(rows)} cells: {len(study.settings)} setting{'s' * (len(study.settings) > 1)}, seeds "
        f"{', '.join(map(str, study.seeds))}. {describe(study.cells, steps)}",
        plan=study.plan,
        missing=missing,
        warnings=study.warnings,
        settings=settings,
        last=study.last,
        share=f"{shares.pop():.0%}" if len(shares) == 1 else "the share guard.collapse",
    )
    return path


def _table(study: Study, lines: Sequence[dict[str, Any]], by: str) -> tuple[Sequence[str], list[list[str]]]:
    label = named(study, by)[1]
    head = ("variant", label, f"against {study.baseline}", "collapsed", "clipped tokens", "volatility", "seconds")
    rows = []
    for line in lines:
        difference = line.get("difference")
        against = spell(difference, "+z.3f") if difference and difference.n > 1 else ""
        beside = (("clipped", ".2%"), ("volatility", ".2%"), ("seconds", ".0f"))
        means = [spell(line[name], form, short=True) for name, form in beside]
        value = spell(line[by]) + (f" (n = {line[by].n})" if line[by].n < line["cells"] else "")
        rows.append([line["variant"], value, against, f"{line['collapsed']} of {line['cells']}", *means])
    return head, rows
