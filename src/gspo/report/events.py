"""What a run said of itself: why it failed, and its warnings, each kind once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from gspo.report.numbers import plural, steps
from gspo.report.read import RunMetrics, is_step, read_lines
from gspo.safe import without_logins

LOSSES = (
    ("rollouts/failed", "rollout", "had no reward"),
    ("groups/dropped", "group", "dropped: fewer than two rewards left"),
    ("updates/skipped", "update", "skipped: loss or gradient not finite"),
)
_STEP = re.compile(r"^step \d+: ?")
_NUMBER = re.compile(r"[-−+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


@dataclass
class Warned:
    """A warning that may have come again with other numbers. text: as it came first. steps: when, in order."""

    text: str
    steps: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        if len(self.steps) == 1:
            return self.text if self.text.startswith(f"step {first} ") else f"{self.text} (step {first})"
        return f"{self.text} ({len(self.steps)} times, first in step {first}, last in step {last})"


def warnings(folder: Path, run: RunMetrics) -> list[str]:
    """The run's warnings. Those that differ in numbers alone are one, with how often they came, and when."""
    found: dict[str, Warned] = {}
    for step, text in _events(folder, "warning"):
        text = _STEP.sub("", text)
        found.setdefault(_NUMBER.sub("#", text), Warned(text)).steps.append(step)
    texts = [str(warned) for warned in found.values()]
    for key, word, meaning in LOSSES:
        lost = int(run.series(key)[1].sum())
        if lost:
            texts.append(f"{plural(lost, word)} {meaning}")
    return texts


def ended(folder: Path, kind: str, run: RunMetrics) -> str:
    """Why the run ended, by an event of this kind, "error" or "collapse"; "" where it did not, or went on later."""
    return next((text for step, text in reversed(_events(folder, kind)) if step >= steps(run)), "")


def sandbox(folder: Path) -> str:
    """In what sandbox the run's programs ran last, as it said; "" where it ran none."""
    return next((text for _, text in reversed(_events(folder, "info")) if text.startswith("programs run in ")), "")


def _events(folder: Path, kind: str) -> list[tuple[int, str]]:
    """Step and text of each event of a kind."""
    events = [event for event in read_lines(folder / "events.jsonl") if event.get("kind") == kind]
    return [
        (event["step"] if is_step(event.get("step")) else 0, without_logins(str(event.get("text", "")))) for event in events
    ]
