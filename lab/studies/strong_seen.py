"""What strong.py shows that was no claim of its plan: which choices break down, and what the sweep was like. As tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import strong
from laws import NOT_RUN, markdown, spelled
from strong_told import MIXTURES, OF_REWARDS, WIDEST, by_seed, complete, rewards, runs, spell_choice

from gspo.statistics.intervals import interval

BROKEN = 0.5  # last steps below it: broken down, since GSPO's lowest rate and tightest range end at .9
FIRST = "no ratio"
SWEPT = ("gspo", "gspo centred")


def endings(results: Sequence[Mapping[str, Any]]) -> str:
    """A row a variant, over all settings that it ran in, the best first."""
    if not complete(results):
        return f"{NOT_RUN.capitalize()}: it needs all seeds of all settings.\n"
    judged = runs(results)
    told = rewards(judged)
    rows = []
    for variant in strong.variants("mixture"):
        here = [run for run in judged if run["variant"] == variant]
        where = [name for name in strong.SETTINGS if variant in told[name]]
        means = [float(np.mean(each)) for each in zip(*(told[name][variant].values() for name in where))]
        less = by_seed(told, where, FIRST, variant)
        places = "mixtures" if where == [*MIXTURES] else "all"
        behind = spelled(interval(less, (-WIDEST, WIDEST)), "+z.2f") if variant != FIRST else ""
        broken = f"{sum(run['reward'] < BROKEN for run in here)} of {len(here)}"
        rows.append((interval(means, OF_REWARDS), [variant, places, broken], behind))
    rows.sort(key=lambda row: -row[0].mean)
    head = ["", "settings", "broke down", "all steps", f"{FIRST} - it, 95 %"]
    return markdown([head, *([*first, spelled(mean, ".2f"), behind] for mean, first, behind in rows)])


def sweeps(results: Sequence[Mapping[str, Any]]) -> str:
    """Mean of the sweep's seeds by rate and range, with the clip as it is and centred."""
    if not (every := strong.swept(results)):
        return f"{NOT_RUN.capitalize()}: the sweep has not ended.\n"
    own = strong.VARIANTS[SWEPT[0]]
    titles = [spell_choice(SWEPT[0], "mixture", {"optimizer": {"lr": 0.0}, "algorithm": each})[1].strip("*") for each in own]
    rows = [["model", "", "rate", *titles]]
    for model, variant, rate in itertools.product(("mixture", "dense"), SWEPT, strong.RATES):
        found = {
            choice["algorithm"]["epsilon_high"]: float(np.mean(means))
            for text, means in every[model, variant].items()
            if (choice := json.loads(text))["optimizer"]["lr"] == rate
        }
        cells = [f"{found[each['epsilon_high']]:.2f}" for each in strong.VARIANTS[variant]]
        rows.append([model, variant, f"{rate:g}", *cells])
    return markdown(rows)


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {"endings": endings, "sweeps": sweeps}
