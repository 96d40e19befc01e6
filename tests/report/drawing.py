"""A run folder of lines of metrics, and the axes of one of its figures."""

import json

from gspo.report import plots
from gspo.report.plots import PLOTS
from gspo.report.read import read_run


def write(folder, lines):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def axes(plot_name, *folders):
    runs = [read_run(folder) for folder in folders]
    plot = plots._with_keys(next(p for p in PLOTS if p.name == plot_name), runs)
    return plots._draw_one(plot, runs).axes[0]
