"""`gspo compare`: runs the missing cells of a study, then draws all that are done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gspo.compare import page, spec
from gspo.compare.analysis import measure
from gspo.compare.cells import CellOutcome, finished, has_event, run_cells
from gspo.compare.figures import setting_charts
from gspo.compare.measures import bounds
from gspo.report.html import write_figures
from gspo.report.read import RunMetrics, is_number, read_run
from gspo.runs.progress import Progress, Terminal
from gspo.safe import own_folder


def compare(
    path: str | Path,
    folder: str | Path | None = None,
    only: str = "*",
    dry_run: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> int:
    """Runs the cells of a study whose names match `only`, and writes its page from all that are done. Returns the exit
    status: 1 if a cell failed or none is done.

    folder: of the study; by default runs/NAME. overrides: `section.key` -> value, for all cells.
    """
    folder = Path(folder) if folder is not None else Path("runs") / Path(path).stem
    study = spec.read(path, folder, overrides)
    chosen = [cell for cell in study.cells if fnmatch(cell.name, only) or fnmatch(cell.name, f"{only}/*")]
    if not chosen:
        raise ValueError(f"--only {only!r}: matches none of {', '.join(dict.fromkeys(c.name for c in study.cells))}")
    done_names = {cell.name for cell in study.cells if finished(cell)}
    note = Progress(0, console=Terminal(force_terminal=False)).note  # plain lines; a closed output does not end the study
    for text in study.warnings:
        note(f"warning  {text}")
    if dry_run:
        for cell in chosen:
            note(f"{'done   ' if cell.name in done_names else 'missing'}  {cell.name}")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = _run(study, [cell for cell in chosen if cell.name not in done_names], len(chosen), note)
    rows, runs = _collect(study, done_names, outcomes)
    if not runs:
        note("no cell is done: nothing to draw")
        return 1
    page.write_rows(rows, folder)
    done = [run for each in runs.values() for variant in each.values() for run in variant]
    limits = {by: bounds(page.named(study, by)[0], done) for by in page.MEASURES if any(by in row for row in rows)}
    summaries = {by: page.summarise(study, rows, by, limits[by]) for by in limits}
    page.write_summary(study, summaries, folder)
    figures = own_folder(folder / "figures")
    charts = {setting: setting_charts(each) for setting, each in runs.items()}
    for setting, each in charts.items():
        write_figures(each, own_folder(figures / spec.slug(setting)))
    report = page.write_html(study, rows, summaries, charts, folder)
    for line in summaries["metric" if "metric" in summaries else "reward"]:
        if "verdict" in line:
            note(f"{line['setting']}: {line['verdict']}")
    note(f"report  {report}")
    return 1 if any(outcome.status == "failed" for outcome in outcomes.values()) else 0


def _run(study: spec.Study, missing: list[spec.Cell], chosen: int, note: Callable[[str], None]) -> dict[str, CellOutcome]:
    """Runs the missing cells and reports the end of each. chosen: how many were asked for."""
    if missing:
        note(f"{len(missing)} of {chosen} cells to run, {study.workers} at once")
    begin = time.monotonic()

    def on_end(outcome: CellOutcome, remaining: int) -> None:
        ended = len(missing) - remaining
        seconds_left = (time.monotonic() - begin) / ended * remaining
        note(
            f"{outcome.status:7} {outcome.cell.name}  {outcome.seconds:.0f} s  {outcome.reason}"
            f"  ({ended} of {len(missing)}, about {seconds_left / 60:.0f} min left)"
        )

    try:
        return {outcome.cell.name: outcome for outcome in run_cells(missing, study.workers, study.threads, on_end)}
    except KeyboardInterrupt:
        note("stopped; the same command goes on")
        raise


def _collect(
    study: spec.Study, done_names: set[str], outcomes: Mapping[str, CellOutcome]
) -> tuple[list[page.CellRow], dict[str, dict[str, list[RunMetrics]]]]:
    """One row per cell, and the finished runs by setting and variant."""
    rows: list[page.CellRow] = []
    runs: dict[str, dict[str, list[RunMetrics]]] = {}
    for cell in study.cells:
        outcome = outcomes.get(cell.name)
        status = outcome.status if outcome else "done" if cell.name in done_names else "not run"
        row: page.CellRow = {"setting": cell.setting, "variant": cell.variant, "seed": cell.seed, "status": status}
        row["reason"] = outcome.reason if outcome else ""
        if status == "done":
            run = read_run(cell.config.log.dir, cell.name)
            row |= measure(run, study.metric, study.last, cell.config.guard)
            row["collapsed"] |= has_event(cell, "collapse")
            if study.metric and not is_number(row["metric"]):
                again = f"To run it again, delete {cell.config.log.dir}"
                row["reason"] = (
                    f"{study.metric} has no value at its last step, {row['steps']}: only its reward counts. "
                    f"{'The guard stopped it' if has_event(cell, 'collapse') else again}"
                )
            runs.setdefault(cell.setting, {}).setdefault(cell.variant, []).append(run)
        rows.append(row)
    return rows, runs
