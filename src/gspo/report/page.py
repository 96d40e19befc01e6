"""The report of a run: one HTML file that needs nothing else, for light and dark pages, screens and phones.

Reads what a run folder holds. Anyone may have written there: the templates escape whatever they are given.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tomli_w

from gspo.report import numbers, plots, samples
from gspo.report.chart import Chart
from gspo.report.events import newest, prompt, sandbox, warnings
from gspo.report.html import render, write_figures, write_page
from gspo.report.judgements import judge
from gspo.report.read import RunMetrics, read_lines, read_run, run_names
from gspo.report.summary import RunSummary, get, headline, lead, origin, summarise, tiles
from gspo.safe import own_folder, without_secrets

logger = logging.getLogger(__name__)

FIRST = ("accuracy", "reward", "loss")  # figures that come first
NEXT = ("reward_parts", "length", "grad_norm")  # those that come beside one that would stand alone


def write_report(run_dirs: Sequence[str | Path]) -> Path:
    """Draw the figures and write the report into the first run folder; returns its path.

    One run gives `report.html`, several in the same figures `comparison.html`. Raises ValueError if a folder has no metrics,
    or if its `figures` is a link.
    """
    folders = [Path(folder) for folder in run_dirs]
    runs = [read_run(folder, name) for folder, name in zip(folders, run_names(folders))]
    figures = own_folder(folders[0] / "figures")
    kind, prefix, values = ("report", "", _report) if len(runs) == 1 else ("comparison", "compare-", _comparison)
    charts = plots.charts(runs)
    write_figures(charts, figures, prefix)
    path = folders[0] / f"{kind}.html"
    write_page(path, f"report/templates/{kind}.html", **values(folders, runs, charts))
    return path


def live_page(folder: Path) -> str:
    """The report of a run that goes on, or has no step yet, as a page that refreshes itself."""
    runs = [read_run(folder, begun=False)]
    return render("report/templates/report.html", live=True, **_report([folder], runs, plots.charts(runs)))


def report_of(folder: Path) -> None:
    """Writes the report of a run that is over, if it has any steps, or warns that it cannot be written."""
    if next(read_lines(folder / "metrics.jsonl"), None) is None:
        return
    try:
        write_report([folder])
    except (OSError, ValueError) as error:
        logger.warning(f"the report could not be written ({error}): fix that, then `gspo report {folder}`")


@contextmanager
def reported(*but: type[BaseException]) -> Iterator[list[Path]]:
    """Writes the reports of the runs whose folders are put into the list, once they are closed, even if an error ended them:
    an older page would still speak of success. but: errors after which none is written, since the run goes on in another
    process, or the user wants it to end at once.
    """
    folders: list[Path] = []
    try:
        yield folders
    except BaseException as error:
        if not isinstance(error, but):
            with suppress(Exception):  # it is the run's own error that counts
                for folder in folders:
                    report_of(folder)
        raise
    for folder in folders:
        report_of(folder)


def _report(folders: list[Path], runs: list[RunMetrics], charts: list[Chart]) -> dict[str, Any]:
    """The values of templates/report.html."""
    (folder,), (run,) = folders, runs
    settings, text = _settings(folder)
    summary = summarise(folder, run, settings)
    title, threshold = headline(summary), get(settings, "reward", "correct_threshold")
    judged = [chart._replace(judgement=judge(chart.name, run, summary.config)) for chart in charts]
    names = [chart.name for chart in charts]
    first = [name for name in FIRST if name in names]
    first += [name for name in NEXT if name in names][: max(0, 2 - len(first))]
    warned, ran = warnings(folder, summary.run), sandbox(folder)
    programs = f" {ran[:1].upper()}{ran[1:]}." if ran else ""
    below = f" {numbers.plural(len(warned), 'warning')} below." if warned else ""
    return {
        "title": f"{summary.run.name}: {title}",
        "origin": origin(summary),
        "headline": title,
        "failure": summary.error or summary.collapsed,
        "lead": lead(summary) + programs + below,
        "tiles": tiles(summary),
        "first": [chart for chart in judged if chart.name in first],
        "warnings": warned,
        "prompt": prompt(folder),
        "before_and_after": samples.before_and_after(folder),
        "events": newest(folder),
        "listed": samples.listed(folder, 1.0 if threshold is None else threshold, summary.served),
        "diagnostics": [chart for chart in judged if chart.name not in first],
        "coloured": samples.coloured(folder / "rollouts.jsonl"),
        "configuration": text,
    }


def _comparison(folders: list[Path], runs: list[RunMetrics], charts: list[Chart]) -> dict[str, Any]:
    """The values of templates/comparison.html."""
    settings, texts = zip(*map(_settings, folders))
    summaries = [summarise(folder, run, table) for folder, run, table in zip(folders, runs, settings)]
    names = [one.run.name for one in summaries]
    warned = [warnings(folder, one.run) for folder, one in zip(folders, summaries)]
    return {
        "title": f"{len(summaries)} runs compared",
        "columns": ("run", "algorithm", "steps", "time", "held-out accuracy", "reward", "clipped", "completion length"),
        "rows": [_cells(one) for one in summaries],
        "charts": charts,
        "warnings": [f"{name}: {text}" for name, each in zip(names, warned) for text in each],
        "configurations": list(zip(names, texts)),
    }


def _cells(summary: RunSummary) -> tuple[str, ...]:
    run = summary.run
    return (
        run.name + (" (failed)" if summary.error else " (collapsed)" if summary.collapsed else ""),
        "supervised" if summary.supervised else get(summary.config, "algorithm", "name") or "",
        str(numbers.steps(run)),
        numbers.duration(numbers.seconds(run)),
        numbers.accuracy(run) + numbers.last_interval(run),
        numbers.change(numbers.ends(run, "reward"), "{:.2f}"),
        numbers.percent(numbers.mean(run, "clip_ratio/tokens")),
        numbers.change(numbers.ends(run, "completions/mean_length"), "{:.0f}"),
    )


def _settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The settings of a run, and their text without secrets: as in the file, or written again if it has some."""
    try:
        text = (folder / "config.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except (OSError, ValueError):
        return {}, ""
    hidden = without_secrets(settings)
    return settings, text if hidden == settings else tomli_w.dumps(hidden)
