"""What `gspo compare lab/studies/words.toml` found, and the README's picture."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from gspo.statistics.intervals import interval
from gspo.statistics.verdicts import spell

sys.path.append(str(Path(__file__).resolve().parents[1]))
from canvas import DARK, LIGHT, Theme, canvas, finish

KEPT = Path(__file__).parent / "results" / "words.json"
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
NAMES = ("reward", "clip/epsilon", "clip_ratio/tokens", "eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
Runs = dict[str, list[dict[str, list[float]]]]  # by arm and seed: a metric at each step that has it


def read(folder: Path) -> Runs:
    """The metrics of the finished cells below `folder`."""
    found: Runs = {}
    for path in sorted(folder.glob("cells/runs/*/seed*/metrics.jsonl")):
        lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
        run = {name: [line[name] for line in lines if name in line] for name in NAMES}
        found.setdefault(path.parents[1].name, []).append(run)
    return found


def mean(values: list[float]) -> float:
    """Of one run's steps."""
    return sum(values) / len(values)


def tell(runs: Runs) -> None:
    """Prints a table of the runs, and the planned comparison."""
    for arm, seeds in runs.items():
        for seed, run in enumerate(seeds):
            held = ", ".join(
                f"{100 * p:.1f} % [{100 * low:.0f}, {100 * high:.0f}]"
                for p, low, high in zip(*(run[name] for name in NAMES[3:]), strict=True)
            )
            shown = ", ".join(f"{run['reward'][step - 1]:.2f}" for step in (1, 5, 10, 15, 20))
            print(f"{arm} {seed}: mean reward {mean(run['reward']):.3f}; held out {held}; reward {shown}; ", end="")
            print(f"clipped {mean(run['clip_ratio/tokens']):.1%}, range at the end {run['clip/epsilon'][-1]:.4f}")
    pairs = list(zip(runs["auto"], runs["3e-2"]))
    rewards = [mean(wide["reward"]) - mean(auto["reward"]) for auto, wide in pairs]
    accuracies = [wide["eval/accuracy"][-1] - auto["eval/accuracy"][-1] for auto, wide in pairs]
    for measure, values in (("mean reward", rewards), ("held out", accuracies)):
        found = interval(values)
        print(f"3e-2 - auto, {measure}: {spell(found, '+z.3f')}, {found.n} seeds")


def draw(seeds: list[dict[str, list[float]]], theme: Theme, path: Path) -> None:
    """The mean of the seeds in training and held out, where each seed has a thin line."""
    with canvas(theme) as (figure, ax):
        for name, colour, label, steps in (
            ("reward", theme.series[4], "in training", range(1, 21)),
            ("eval/accuracy", theme.series[0], "held out", (0, 10, 20)),
        ):
            lines = [[100 * value for value in run[name]] for run in seeds]
            for line in lines if label == "held out" else ():
                ax.plot(steps, line, color=colour, lw=0.8, alpha=0.5)
            means = [mean(list(at)) for at in zip(*lines)]
            ax.plot(steps, means, "o-" if len(means) < 5 else "-", color=colour, lw=2.2, label=label)
        for at in (0, -1):
            place = {"textcoords": "offset points", "ha": "center", "weight": "bold"}
            ax.annotate(f"{means[at]:.0f} %", (steps[at], means[at]), (0, 9 if at else -17), **place)
        ax.set_xlabel("step")
        finish(figure, ax, "Right answers", "%", top=100)
        figure.savefig(path, dpi=180)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dir", type=Path, help="the study's folder: first writes results/words.json from its finished cells"
    )
    folder = parser.parse_args().dir
    if folder:
        KEPT.write_text(json.dumps(read(folder)) + "\n")
    kept: Runs = json.loads(KEPT.read_text())
    tell(kept)
    for theme, suffix in ((LIGHT, ""), (DARK, "-dark")):
        draw(kept["auto"], theme, IMAGES / f"demo{suffix}.png")
