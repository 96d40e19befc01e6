"""The picture of real.py's planned comparisons: each seed's difference, its mean and interval, and the margin."""

from __future__ import annotations

import sys
from pathlib import Path

import real
from evidence import unpack

from gspo.statistics.intervals import interval

sys.path.append(str(Path(__file__).resolve().parents[1]))
from canvas import DARK, LIGHT, Theme, canvas


def draw(images: Path) -> None:
    """Draws evidence-real.png into `images`, light and dark."""
    unpack(real.RESULTS / "real_study")
    done = real.of_cells("real_study")
    values = {pair: real.differences(done, *pair, "mean") for pair in real.PAIRS}
    _draw(values, LIGHT, images / "evidence-real.png")
    _draw(values, DARK, images / "evidence-real-dark.png")


def _draw(values: dict[tuple[str, str], list[float]], theme: Theme, path: Path) -> None:
    with canvas(theme) as (figure, ax):
        ax.axvspan(-real.MARGIN, real.MARGIN, color=theme.faint, alpha=0.5, lw=0)
        ax.axvline(0, color=theme.ink, lw=1)
        for at, (colour, each) in enumerate(zip(theme.series, values.values())):
            found = interval(each)
            ax.plot(each, [at + 0.22] * len(each), "o", color=colour, ms=4, alpha=0.6, mew=0)
            ax.plot([found.low, found.high], [at, at], color=colour, lw=2.5, solid_capstyle="round")
            ax.plot(found.mean, at, "o", color=colour, ms=7)
        ax.set_yticks(range(len(values)), [f"{one} − {other}" for one, other in values])
        ax.set_ylim(len(values) - 0.5, -0.5)
        ax.grid(False, axis="y")
        ax.grid(True, axis="x", lw=0.7)
        ax.tick_params(length=0)
        for side in ("top", "right", "left"):
            ax.spines[side].set_visible(False)
        ax.set_xlabel("difference in mean reward over 25 steps", fontsize=10)
        ax.text(real.MARGIN, -0.47, f" margin {real.MARGIN}", fontsize=9, va="top")
        figure.set_size_inches(6.4, 2.6)
        figure.subplots_adjust(0.24, 0.22, 0.97, 0.97)
        figure.savefig(path)
