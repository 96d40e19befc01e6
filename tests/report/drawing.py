"""A run folder of lines of metrics, and one of its figures."""

import json

from gspo.report.plots import charts
from gspo.report.read import read_run


def write(folder, lines):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def figure(name, *folders):
    """The figure with this name of the runs in these folders."""
    return next(chart for chart in charts([read_run(folder) for folder in folders]) if chart.name == name)


def of(chart, *styles):
    """Its marks of these styles."""
    return [mark for mark in chart.marks if mark.style in styles]
