"""Writes the tables of lab/evidence.md from results/*.json, and its figures; those of lab/mechanism.md from
results/mechanism.tar.xz and results/strong.tar.xz. `--check` only compares, `--tables` draws no figures.

A table stands between `<!-- table: STUDY / SETTING + SETTING -->` and `<!-- end -->`; those of a dial follow
`<!-- dial: NAME -->`, those of strong.py `<!-- training: NAME -->`, all verdicts `<!-- verdicts -->`.
Figures of curves need the cells themselves (lab/studies/evidence.py); without them the committed ones stay.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import verdicts
from foretold import table as outcomes
from laws import tables
from mechanism import STUDY
from mechanism_pictures import draw as draw_mechanism
from real_picture import draw as draw_real
from strong import STUDY as TRAINED
from strong_seen import TABLES as SEEN_OF_TRAINING
from strong_told import TABLES as TOLD_OF_TRAINING

from gspo.compare.spec import slug

sys.path.append(str(Path(__file__).resolve().parents[1]))
from canvas import DARK, LIGHT, Theme, canvas, finish

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "evidence.md"
MECHANISM, IMAGES = HERE.parent / "mechanism.md", HERE.parents[1] / "docs" / "images"
TABLE = re.compile(r"(<!-- table: (\w+) / (.+?) -->\n).*?(<!-- end -->)", re.S)
VERDICTS = re.compile(r"(<!-- verdicts -->\n).*?(<!-- end -->)", re.S)
TRAINING = re.compile(r"(<!-- training: (\w+) -->\n).*?(<!-- end -->)", re.S)
DIAL = re.compile(r"(<!-- dial: (\w+) -->\n).*?(<!-- end -->)", re.S)
RANGES = ("3e-5", "3e-4", "3e-3", "3e-2")  # of lengths.toml
# setting and figure of `gspo compare` that the page shows
CURVES = (
    ("4 mini-batches", "reward"), ("4 epochs x 4 mini-batches", "reward"), ("4 epochs x 4 mini-batches", "volatility"),
    ("int4 sampler, its own likelihoods", "reward"),
)  # fmt: skip
OF_TRAINING = SEEN_OF_TRAINING | TOLD_OF_TRAINING
SEEN = ("GRPO + R2", "GSPO", "GSPO auto")  # in the picture of all differences
Line = dict[str, Any]


def lines_of(study: str, by: str = "reward") -> list[Line]:
    """The summary of a study: a line a setting and variant."""
    return json.loads((RESULTS / f"{study}.json").read_text(encoding="utf-8"))[by]


def spell(value: Line | None, form: str = ".3f") -> str:
    """Mean and interval."""
    if value is None or value["mean"] is None:
        return ""
    if value["low"] is None:
        return format(value["mean"], form)
    return f"{value['mean']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def mean(value: Line, form: str) -> str:
    """The mean alone; nothing where there is none."""
    return "" if value["mean"] is None else format(value["mean"], form)


def table(study: str, names: str) -> str:
    """Settings in Markdown: their names, which may have * in them, with + in between."""
    head = json.loads((RESULTS / f"{study}.json").read_text(encoding="utf-8"))
    by_measure = {(by, line["setting"], line["variant"]): line for by in ("mean", "metric") for line in head[by]}
    lines = [line for name in names.split(" + ") for line in head["reward"] if fnmatchcase(line["setting"], name)]
    if not lines:
        raise ValueError(f"{study} / {names}: no such setting in {study}.json")
    against = f"minus {head['baseline']}"
    titles = ["", "n", "reward", against, "all steps", against, "accuracy", against, "fell", "clipped", "volatility"]
    rows, setting = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"], ""
    for line in lines:
        if line["setting"] != setting and len({line["setting"] for line in lines}) > 1:
            rows.append(f"| **{line['setting']}** |" + " |" * (len(titles) - 1))
        setting = line["setting"]
        cells = [line["variant"], str(line["cells"])]
        for by in ("reward", "mean", "metric"):
            each = by_measure.get((by, setting, line["variant"]), line)
            cells += [mean(each[by], ".3f"), spell(each.get("difference"), "+z.3f")]
        cells += [mean(line["fall"], ".3f"), mean(line["clipped"], ".2%"), mean(line["volatility"], ".2%")]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def pages() -> dict[Path, str]:
    """The pages with today's tables."""
    results, trained = STUDY.kept(), TRAINED.kept()

    def of_dial(name: str) -> str:
        return outcomes(results) if name == "foretold" else tables(results, name)

    evidence = TABLE.sub(lambda m: m[1] + table(m[2], m[3]) + m[4], PAGE.read_text(encoding="utf-8"))
    mechanism = DIAL.sub(lambda m: m[1] + of_dial(m[2]) + m[3], MECHANISM.read_text(encoding="utf-8"))
    return {
        PAGE: VERDICTS.sub(lambda m: m[1] + verdicts.table(results, trained) + m[2], evidence),
        MECHANISM: TRAINING.sub(lambda m: m[1] + OF_TRAINING[m[2]](trained) + m[3], mechanism),
    }


def draw_differences(theme: Theme, path: Path) -> None:
    """Every paired difference to GRPO with its interval."""
    lines = [line for line in lines_of("evidence") + lines_of("after") if line["variant"] in SEEN and line["cells"]]
    with canvas(theme) as (figure, ax):
        labels, at = [], 0.0
        for setting in dict.fromkeys(line["setting"] for line in lines):
            ax.text(
                -0.01, at, setting, transform=ax.get_yaxis_transform(), ha="right", va="center", weight="bold", fontsize=9.5
            )
            for line in (line for line in lines if line["setting"] == setting):
                at += 1
                d, colour = line["difference"], theme.series[SEEN.index(line["variant"])]
                ax.plot([d["low"], d["high"]], [at, at], color=colour, lw=2, solid_capstyle="round")
                ax.plot(d["mean"], at, "o", color=colour, ms=6)
                labels.append((at, f"{line['variant']}, n = {d['n']}"))
            at += 1.4
        ax.axvline(0, color=theme.ink, lw=1)
        ax.set_yticks([y for y, _ in labels], [text for _, text in labels], fontsize=9.5)
        ax.set_ylim(at - 0.4, -0.8)
        ax.tick_params(length=0)
        ax.grid(True, axis="x", lw=0.7)
        ax.grid(False, axis="y")
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        ax.set_xlabel("reward of the last 10 steps minus GRPO's, 95 % interval", fontsize=10)
        height = 0.24 * at + 0.7
        figure.set_size_inches(7.6, height)
        figure.subplots_adjust(0.44, 0.6 / height, 0.98, 0.995)
        figure.savefig(path)


def draw_ranges(theme: Theme, path: Path) -> None:
    """Reward against the clip range at each completion length; the automatic one as a dotted line."""
    with canvas(theme) as (figure, ax):
        lines = {(line["setting"], line["variant"]): line["reward"] for line in lines_of("lengths")}
        at = np.arange(len(RANGES))
        for i, setting in enumerate(dict.fromkeys(setting for setting, _ in lines)):
            colour, shift = theme.series[i], 0.05 * (i - 1)
            rewards = [lines[setting, f"GSPO {name}"] for name in RANGES]
            middle = np.array([value["mean"] for value in rewards])
            reach = np.array([value["high"] for value in rewards]) - middle
            ax.errorbar(at + shift, middle, reach, color=colour, marker="o", lw=1.6, capsize=3, label=setting)
            ax.axhline(lines[setting, "GSPO auto"]["mean"], color=colour, ls=":", lw=1.8)
        finish(figure, ax, "Reward by clip range; dotted: auto", "reward")
        ax.set_xticks(at, [f"{name} / 4e{name[2:]}" for name in RANGES], fontsize=9.5)
        ax.set_xlim(-0.5, len(RANGES) - 0.5)
        ax.set_xlabel("epsilon / epsilon_high")
        figure.savefig(path)


def figures() -> None:
    """All figures of the pages, light and dark."""
    draw_mechanism(STUDY.kept(), IMAGES)
    draw_real(IMAGES)
    for name, draw in {"evidence-differences": draw_differences, "evidence-clip": draw_ranges}.items():
        draw(LIGHT, IMAGES / f"{name}.png")
        draw(DARK, IMAGES / f"{name}-dark.png")
    for setting, name in CURVES:
        drawn = RESULTS / "evidence" / "figures" / slug(setting) / f"{name}.svg"  # the page still has PNGs of older ones
        if drawn.exists():
            shutil.copy(drawn, IMAGES / f"evidence-{slug(setting)}-{name}.svg")


def main() -> None:
    """Writes, compares, or prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where a page is out of date")
    parser.add_argument("--tables", action="store_true", help="draw no figures")
    options = parser.parse_args()
    if options.check:
        if old := [path.name for path, text in pages().items() if path.read_text(encoding="utf-8") != text]:
            sys.exit(f"{', '.join(old)}: out of date: run python lab/studies/report.py")
        return
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    if not options.tables:
        figures()


if __name__ == "__main__":
    main()
