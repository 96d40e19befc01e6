"""What a first run on a GPU found: one file to read and one for programs, gpu-report.md and gpu-report.json."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SEND = "Please send this file and gpu-report.json back: open an issue with both."
DRY = "It ran on a CPU (the dry form), so it says that the checks run, and nothing about a GPU."


@dataclass(frozen=True)
class Check:
    """A number and its limit. passed: None where the number is only told."""

    name: str
    number: float
    limit: str
    passed: bool | None


@dataclass
class Report:
    """All of a run. speeds: a row for each model, shape and layout. rules: by model, what "auto" should do. missing: what
    did not run, or failed, and why.
    """

    dry: bool
    machine: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    speeds: list[dict[str, Any]] = field(default_factory=list)
    rules: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def tell(self, name: str, number: float, limit: str = "") -> None:
        """Notes a number that nothing is asked of. limit: what would be asked of it on a GPU."""
        self.checks.append(Check(name, number, limit, None))

    def check(self, name: str, number: float, least: float = -float("inf"), most: float = float("inf")) -> None:
        """Notes a number. Raises AssertionError where it is not from least to most."""
        passed = least <= number <= most
        self.checks.append(Check(name, number, bounds(least, most), passed))
        assert passed, f"{name}: {number:.3g}, and it must be {bounds(least, most)}"

    @property
    def passed(self) -> bool:
        """Whether every number kept its limit, and nothing ended in an error."""
        failed = any(why.startswith("failed") for why in self.missing.values())
        return not failed and all(check.passed is not False for check in self.checks)

    def write(self, folder: Path = ROOT) -> Path:
        """Both files. Returns the one to read."""
        path = folder / "gpu-report.md"
        path.write_text(self.text(), encoding="utf-8")
        path.with_suffix(".json").write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    def text(self) -> str:
        """As Markdown."""
        judged = [check for check in self.checks if check.passed is not None]
        good = sum(bool(check.passed) for check in judged)
        parts = ["# gspo on a GPU: report", DRY if self.dry else SEND]
        parts += [f"{'Passed' if self.passed else 'NOT passed'}: {good} of {len(judged)} numbers keep their limit."]
        parts += ["## Machine", table(["", ""], [[name, str(value)] for name, value in self.machine.items()])]
        rows = [[c.name, f"{c.number:.3g}", c.limit, verdict(c.passed)] for c in self.checks]
        parts += ["## Checks", table(["check", "number", "limit", "passed"], rows)]
        if self.speeds:
            rows = [[form(row) for form in COLUMNS.values()] for row in self.speeds]
            parts += ["## Updates by layout", SPEEDS, table(list(COLUMNS), rows)]
        for name, rule in self.rules.items():
            dry = "from a CPU's times, so not to be set: " if self.dry else ""
            parts += [f'What `train.layout = "auto"` should do, by {name}: {dry}{rule}']
        if self.missing:
            parts += ["## What did not run, or failed", "\n".join(f"- {name}: {why}" for name, why in self.missing.items())]
        return "\n\n".join(parts) + "\n"


SPEEDS = (
    "Forward and backward passes, as the learner makes them. P, R, G: tokens of a prompt, of a completion, completions to a "
    "prompt. spared: tokens of padded rows over those that `shared` reads. times as fast: as padded rows, with the interval "
    "of the median. of the roofline: the operations that the forest needs, each token once, at the device's rate for a "
    "large product; on a GPU this is the model FLOPs utilisation."
)
COLUMNS = {
    "model": lambda row: row["model"],
    "P, R, G, prompts": lambda row: ", ".join(map(str, row["shape"])),
    "spared": lambda row: f"{row['places'] / row['tokens']:.2f}",
    "layout": lambda row: row["layout"],
    "seconds": lambda row: f"{row['seconds']:.4g}",
    "times as fast": lambda row: f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
    "of the roofline": lambda row: f"{row['roofline']:.0%}",
    "GiB": lambda row: f"{row['GiB']:.2f}",
}


def table(head: list[str], rows: list[list[str]]) -> str:
    """Of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bounds(least: float, most: float) -> str:
    """In words."""
    if least == -float("inf"):
        return f"at most {most:g}"
    return f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}"


def verdict(passed: bool | None) -> str:
    """In words."""
    return {True: "yes", False: "NO", None: "told"}[passed]
