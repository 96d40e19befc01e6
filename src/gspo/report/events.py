"""The events of a run: why it failed, its warnings, grouped by kind, and the prompt that it showed."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from gspo.report.numbers import plural, steps
from gspo.report.read import RunMetrics, read_lines
from gspo.safe import shorten

LOSSES = (
    ("rollouts/failed", "rollout", "had no reward"),
    ("groups/dropped", "group", "dropped: fewer than two rewards left"),
    ("updates/skipped", "update", "skipped: loss or gradient not finite"),
)
MOST_EVENTS, ELSEWHERE = 200, ("warning", "error", "collapse", "prompt")  # of the list
_STEP = re.compile(r"^step \d+: ?")
_NUMBER = re.compile(r"[-−+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")


def warnings(folder: Path, run: RunMetrics) -> list[str]:
    """The warnings of a run, then its losses. Warnings that differ only in numbers are merged, with count and steps."""
    found: dict[str, list[tuple[int, str]]] = {}
    for step, text in _events(folder, "warning"):
        text = _STEP.sub("", text)
        found.setdefault(_NUMBER.sub("#", text), []).append((step, text))
    texts = []
    for (first, text), *others in found.values():
        if others:
            texts.append(f"{text} ({len(others) + 1} times, first in step {first}, last in step {others[-1][0]})")
        else:
            when = "reported only in step" if first else "step"  # those before training hold for all of it
            texts.append(text if text.startswith(f"step {first} ") else f"{text} ({when} {first})")
    lost = [(int(run.series(key)[1].sum()), word, meaning) for key, word, meaning in LOSSES]
    return texts + [f"{plural(count, word)} {meaning}" for count, word, meaning in lost if count]


def newest(folder: Path) -> list[tuple[int, str, str]]:
    """Step, kind and text of the newest events, without those that the page shows elsewhere."""
    events = (each for each in read_lines(folder / "events.jsonl") if each["kind"] not in ELSEWHERE)
    return [(each["step"], each["kind"], shorten(each["text"], 2000)) for each in deque(events, MOST_EVENTS)]


def ended(folder: Path, kind: str, run: RunMetrics) -> str:
    """Why the run ended, by its last event of this kind ("error" or "collapse"); "" if it has none or went on later."""
    return next((text for step, text in reversed(_events(folder, kind)) if step >= steps(run)), "")


def prompt(folder: Path) -> str:
    """A prompt as the model read it, with its special tokens; "" if the run has shown none."""
    return next((text for _, text in _events(folder, "prompt")), "")


def sandbox(folder: Path) -> str:
    """The sandbox that the run's programs last ran in, by its own events; "" if it ran none."""
    return next((text for _, text in reversed(_events(folder, "info")) if text.startswith("programs run in ")), "")


def _events(folder: Path, kind: str) -> list[tuple[int, str]]:
    """Step and text of each event of a kind."""
    return [(each["step"], each["text"]) for each in read_lines(folder / "events.jsonl") if each["kind"] == kind]
