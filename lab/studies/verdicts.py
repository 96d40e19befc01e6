"""The closing table of lab/evidence.md: for each claim of GSPO's paper and each lead what was compared, on how many seeds,
what was found, and how many seeds would find a difference of .05.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import foretold
import numpy as np
import strong_told
from laws import Found, markdown, spelled
from strong_told import ALPHA, EQUAL, found_by, reach

from gspo.statistics.intervals import interval, paired

RESULTS = Path(__file__).resolve().parent / "results"
SIZE, MOST = 0.05, 10_000  # a difference worth a change of algorithm; more seeds than that nobody runs
LEAST = 4  # seeds: with fewer the spread is too uncertain for a verdict
EVIDENCE, MECHANISM, STRONG = (f"`lab/studies/{name}.py`" for name in ("evidence", "mechanism", "strong"))
Cell = tuple[str, str, str]  # study, setting, variant
LENGTHS, RECOMPUTED = ("lengths", "100 tokens"), ("likelihoods", "int4 sampler, the paper's ranges")
REUSE, OWN, EQUAL_RATE = (
    ("evidence", "4 epochs x 4 mini-batches"), ("evidence", "int4 sampler, its own likelihoods"),
    ("after", "4 mini-batches, lr 5e-5"),
)  # fmt: skip
LONGER = (("after", "120 steps"), ("evidence", "4 mini-batches"))
PAIRS: tuple[tuple[str, str, str, Cell, Cell], ...] = (
    ("1 stable", "GSPO - GRPO, equal rates", "reward", (*EQUAL_RATE, "GSPO"), (*EQUAL_RATE, "GRPO")),
    ("1", "the same, 16 updates a batch", "reward", (*REUSE, "GSPO"), (*REUSE, "GRPO")),
    ("2 better at equal compute", "GSPO 3e-2 - GRPO .2", "reward", (*LENGTHS, "GSPO 3e-2"), (*LENGTHS, "GRPO 0.2")),
    ("2", "the same, all steps", "mean", (*LENGTHS, "GSPO 3e-2"), (*LENGTHS, "GRPO 0.2")),
    ("3 clips more, learns faster", "GSPO 3e-4 - GRPO .2", "reward", (*LENGTHS, "GSPO 3e-4"), (*LENGTHS, "GRPO 0.2")),
    ("3", "the same, all steps", "mean", (*LENGTHS, "GSPO 3e-4"), (*LENGTHS, "GRPO 0.2")),
    ("4 GRPO needs replay", "GRPO + R2 - GRPO, 16 updates", "reward", (*REUSE, "GRPO + R2"), (*REUSE, "GRPO")),
    ("5 the engine's likelihoods", "GSPO - GRPO, int4, wide ranges", "reward", (*OWN, "GSPO"), (*OWN, "GRPO")),
    *(
        ("5", f"{name}, the paper's ranges: recomputed - engine", "reward",
         (*RECOMPUTED, f"{name}, recomputed"), (*RECOMPUTED, f"{name}, engine"))
        for name in ("GSPO", "GRPO")
    ),
    *(
        (claim, f"{name}, 120 steps - 40", "reward", (*LONGER[0], name), (*LONGER[1], name))
        for claim, name in (("6 more compute, better", "GSPO"), ("6", "GRPO"))
    ),
)  # fmt: skip
OF_STRONG = ("1", "1", "1", "4", "4 GSPO needs none", "auto", "something must bound", "1 it is the mixture")
"""The claim of the paper, or what else each claim of strong.py is about, in its order."""


def outcomes(column: str, cell: Cell) -> dict[int, float]:
    """Of each seed, as the study's table of cells has it."""
    study, *names = cell
    with open(RESULTS / f"{study}.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if [row["setting"], row["variant"]] == names]
    return {int(row["seed"]): float(row[column]) for row in rows}


def seeds_for(values: Sequence[float], size: float = SIZE) -> int | None:
    """How many seeds find a difference of this size at 5 % in 80 of 100 studies, as spread as these; None: over MOST."""
    spread = float(np.std(values, ddof=1))
    low, high = 2, MOST
    if reach(high, ALPHA) * spread > size:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reach(middle, ALPHA) * spread <= size else (middle + 1, high)
    return low


def power(values: Sequence[float]) -> list[str]:
    """What so many seeds find, and how many find SIZE."""
    if len(values) < LEAST:
        return ["", ""]
    seeds = seeds_for(values)
    return [f"{found_by(values, ALPHA):.3f}", f"{seeds:,}" if seeds else f"over {MOST:,}"]


def said(values: Sequence[float]) -> str:
    """The verdict on a difference, by its interval alone."""
    value = interval(values)
    if len(values) < LEAST:
        return f"not judged: {len(values)} seeds"
    if max(-value.low, value.high) < EQUAL:
        return f"equal within {EQUAL:g}"
    return ("above" if value.mean > 0 else "below") if value.resolved else "not resolved"


def table(mechanism: Sequence[dict[str, Any]], trained: Sequence[Mapping[str, Any]]) -> str:
    """All verdicts, those of the studies' curves first, then those of strong.py, then the leads."""
    rows = [["claim", "compared", "n", "found", "these seeds find", f"{SIZE:g} needs", "verdict", "again"]]
    for claim, words, column, one, other in PAIRS:
        values = paired(outcomes(column, one), outcomes(column, other))
        found = spelled(interval(values), "+z.3f")
        rows.append([claim, words, str(len(values)), found, *power(values), said(values), EVIDENCE])
    rows += strongly(trained)
    rows += led(mechanism)
    if strong_told.complete(trained):
        rows += [
            [
                "lead: centring",
                f"{title}, where counted",
                str(value.n),
                spelled(value, "+z.3f"),
                *power(each),
                verdict,
                STRONG,
            ]
            for title, each, value, verdict in strong_told.centred(trained)
        ]
    return markdown(rows)


def led(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A row for each lead that mechanism.py followed, with its seeds."""
    found = Found(results)
    told = [("lead: heavy tails of mixtures", found.seeds(foretold.ends()), foretold.tails(found))]
    seeds = found.seeds(foretold.line("length"))
    drift = (*foretold.length(found), foretold.drifts(found))
    told += [("lead: averaging leaves the drift", seeds, row) for row in drift]
    seeds = foretold.fresh(found).seeds([place for _, place in foretold.all_points()])
    told.append(("lead: near the policy the token ratio costs nothing", seeds, _short(foretold.best(found)[0])))
    return [
        [lead, words.partition(" ")[2], str(len(seeds)), number, "", "", verdict, MECHANISM]
        for lead, seeds, (words, number, verdict) in told
    ]


def strongly(trained: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each claim of strong.py, at its corrected level."""
    if not strong_told.complete(trained):
        return []
    return [
        [claim, f"{title}, {place}", n, found, *power(each.values), verdict.partition(";")[0], STRONG]
        for claim, each, (title, place, n, found, _, verdict) in zip(OF_STRONG, *strong_told.judged(trained), strict=True)
    ]


def _short(row: Sequence[str]) -> list[str]:
    """Without the points by name, which lab/mechanism.md has."""
    words, found, verdict = row
    return [words, found.partition(":")[0], verdict]
