"""Runs all that lab/evidence.md rests on: models, sweep, choice, studies, tables, figures. What is done is kept.

    python lab/studies/evidence.py            # a few hours on two cores
    python lab/studies/evidence.py lengths    # one study; `gspo compare --only` runs single cells
    python lab/studies/evidence.py --scale 4  # models of 16 layers and 64 experts, for a GPU; below runs/evidence-x4

The choice follows the rule in sweep.toml and is written into evidence.toml. A cell that another study has run with the same
configuration is taken from there.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gspo.compare.cells import finished
from gspo.compare.compare import compare
from gspo.compare.spec import Cell, read

HERE = Path(__file__).resolve().parent
STUDIES = ("sweep", "evidence", "lengths", "after", "target", "likelihoods")
EXTRA = ("GRPO + R3", "GSPO + R3", "CISPO", "SAPO")
DIALS = "lab.studies.dials:dials"
INT4 = f'sampler = {{engine = "{DIALS}", engine_args = {{kind = "int4"}}}}\n'
LATE = f'sampler = {{engine = "{DIALS}", engine_args = {{lag = 4}}}}\n'
DENSE_MODEL = 'model = {path = "runs/study-models/dense/model"}\n'
SETTINGS = {
    "4 mini-batches": "",
    "4 epochs x 4 mini-batches": "algorithm = {epochs = 4}\n",
    "int4 sampler, its own likelihoods": INT4,
    "int4 sampler, pi_old recomputed": INT4 + 'algorithm = {old_logprobs = "recompute"}\n',
    "rollouts 4 steps old": LATE,
    "dense, 4 mini-batches": DENSE_MODEL,
    "dense, int4 sampler, its own likelihoods": DENSE_MODEL + INT4,
}
CORE, DENSE = ("GRPO", "GRPO + R2", "GSPO", "GSPO auto"), ("GRPO", "GSPO", "GSPO auto")
RUNS = {
    "4 mini-batches": (CORE, 5),
    "4 epochs x 4 mini-batches": ((*CORE, *EXTRA), 5),
    "int4 sampler, its own likelihoods": ((*CORE, "GRPO + R3", "GSPO + R3"), 5),
    "int4 sampler, pi_old recomputed": (("GRPO", "GSPO"), 3),
    "rollouts 4 steps old": (("GRPO", "GSPO", "GSPO auto"), 3),
    "dense, 4 mini-batches": (DENSE, 5),
    "dense, int4 sampler, its own likelihoods": (DENSE, 5),
}
# The setting of the sweep whose choice a setting takes.
SWEPT = {
    "int4 sampler, pi_old recomputed": "int4 sampler, its own likelihoods",
    "rollouts 4 steps old": "4 mini-batches",
    "dense, 4 mini-batches": "4 mini-batches",
    "dense, int4 sampler, its own likelihoods": "int4 sampler, its own likelihoods",
}
CLIP = {
    "3e-4": "epsilon = 3e-4, epsilon_high = 4e-4", "3e-3": "epsilon = 3e-3, epsilon_high = 4e-3",
    "3e-2": "epsilon = 3e-2, epsilon_high = 4e-2", "0.02": "epsilon = 0.02, epsilon_high = 0.027",
    "0.2": "epsilon = 0.2, epsilon_high = 0.27", "0.8": "epsilon = 0.8, epsilon_high = 2.7",
}  # fmt: skip


def choices(results: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """(setting, algorithm) -> (clip, learning rate): the highest reward; on a tie the lower rate, then the wider clip."""
    best: dict[tuple[str, str], tuple[float, float, float, str, str]] = {}
    with open(results / "results.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["status"] != "done":
                sys.exit(f"the sweep is not complete: {row['setting']} / {row['variant']} is {row['status']}")
            algorithm, clip, _, lr = row["variant"].split()
            rank = (round(float(row["reward"]), 6), -float(lr), float(clip), clip, lr)
            key = row["setting"], algorithm
            best[key] = max(best.get(key, rank), rank)
    return {key: rank[3:] for key, rank in best.items()}


def study(chosen: dict[tuple[str, str], tuple[str, str]]) -> str:
    """The study file with these choices."""
    lines = [
        "# Written by evidence.py from the sweep's results, by the rule in sweep.toml.",
        "",
        'title = "The evidence: GSPO against GRPO on a small mixture of experts"',
        'base = "base.toml"',
        'plan = "Seeds, measure and rule of choice were fixed in sweep.toml before anything ran."',
        "seeds = [0, 1, 2, 3, 4]",
        'baseline = "GRPO"',
        "last = 10",
    ]
    for name, table in {
        "GRPO": 'algorithm = {name = "grpo"}', "GRPO + R2": 'algorithm = {name = "grpo", router_replay = "R2"}',
        "GSPO": 'algorithm = {name = "gspo"}', "GSPO auto": 'algorithm = {name = "gspo", epsilon = "auto"}',
        "GRPO + R3": 'algorithm = {name = "grpo", router_replay = "R3"}\nseeds = [0, 1, 2]',
        "GSPO + R3": 'algorithm = {name = "gspo", router_replay = "R3"}\nseeds = [0, 1, 2]',
        "CISPO": 'algorithm = {name = "cispo"}\nseeds = [0, 1, 2]', "SAPO": 'algorithm = {name = "sapo"}\nseeds = [0, 1, 2]',
    }.items():  # fmt: skip
        lines += ["", f'[variants."{name}"]', table]
    for setting, (variants, seeds) in RUNS.items():
        names = ", ".join(f'"{name}"' for name in variants)
        lines += ["", f'[settings."{setting}"]', SETTINGS[setting] + f"only = [{names}]"]
        lines += ["seeds = [0, 1, 2]"] if seeds == 3 else []
        for name in variants:
            algorithm = "GSPO" if name.startswith("GSPO") else "GRPO"
            clip, lr = chosen[SWEPT.get(setting, setting), algorithm]
            lines += ["", f'[settings."{setting}".variants."{name}"]', f"optimizer = {{lr = {lr}}}"]
            lines += [f"algorithm = {{{CLIP[clip]}}}"] if name not in ("GSPO auto", "CISPO", "SAPO") else []
    return "\n".join(lines) + "\n"


def file_of(folder: Path) -> Path:
    """The study file of results/NAME: NAME.toml beside `results`."""
    return folder.parent.parent / f"{folder.name}.toml"


def cells_of(folder: Path) -> list[Cell]:
    """The cells of a study, whose name its folder has."""
    return read(file_of(folder), folder).cells


def unpack(folder: Path) -> None:
    """Finished cells that were committed, where there are none yet."""
    archive = folder.with_suffix(".tar.xz")
    if archive.exists() and not (folder / "cells").exists():
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


def borrow(cells: Iterable[Cell], earlier: Sequence[Cell]) -> None:
    """Takes finished runs for cells whose configuration is the same but for the folder."""
    for cell in cells:
        for donor in earlier:
            if replace(donor.config, log=cell.config.log) == cell.config and not finished(cell) and finished(donor):
                shutil.copytree(donor.config.log.dir, cell.config.log.dir, dirs_exist_ok=True)


def pack(folder: Path) -> None:
    """What of the finished cells is worth keeping: their configuration and metrics, and the results."""
    for suffix in (".csv", ".json"):
        if (folder / f"results{suffix}").exists():
            shutil.copy(folder / f"results{suffix}", folder.with_suffix(suffix))
    cells = [Path(cell.config.log.dir) for cell in cells_of(folder) if finished(cell)]
    with tarfile.open(folder.with_suffix(".tar.xz"), "w:xz") as file:
        for cell in cells:
            for path in (cell / "config.toml", cell / "metrics.jsonl"):
                file.add(path, path.relative_to(folder))


def main() -> int:
    """Goes on with whatever is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", help=f"those to run, by default all: {', '.join(STUDIES)}")
    parser.add_argument("--scale", type=int, default=1, help="multiplies layers and experts (default: %(default)s)")
    options = parser.parse_args()
    chosen = options.studies or STUDIES
    if unknown := set(chosen) - set(STUDIES):
        parser.error(f"{', '.join(sorted(unknown))}: no such study; there are {', '.join(STUDIES)}")
    place = HERE
    if options.scale != 1:  # study files of its own, which may be edited: the sweep's choice is another one there
        place = HERE.parents[1] / "runs" / f"evidence-x{options.scale}"
        place.mkdir(parents=True, exist_ok=True)
        for name in {"base", *STUDIES} - {path.stem for path in place.glob("*.toml")}:
            shutil.copy(HERE / f"{name}.toml", place)
    os.chdir(HERE.parents[1] if options.scale == 1 else place)  # the study files name models relative to it
    place = Path(os.path.relpath(place))  # what is kept names no machine's folders
    root = str(HERE.parents[1])  # where lab.studies.dials is found, here and in the cells
    sys.path.append(root)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), root)))
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as the cells have it: the models are then the same everywhere
    subprocess.run([sys.executable, HERE / "prepare.py", "--scale", str(options.scale)], check=True, env=one_thread)
    print(f"runs {', '.join(chosen)}; what is done is kept", flush=True)
    earlier: list[Cell] = []
    for folder in (place / "results" / name for name in STUDIES):
        unpack(folder)
        if folder.name in chosen:
            borrow(cells_of(folder), earlier)
            try:
                status = compare(file_of(folder), folder)
            finally:
                pack(folder)
            if status:
                return status
            if folder.name == "sweep":
                file_of(folder.with_name("evidence")).write_text(study(choices(folder)), encoding="utf-8")
        earlier += cells_of(folder)
    if options.scale == 1:
        subprocess.run([sys.executable, HERE / "report.py"], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
