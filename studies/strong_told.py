"""What strong.py has found, as tables: of each setting, of the claims by the rule of its plan, and of centring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import strong
from laws import NOT_RUN, markdown, spelled

from gspo.study.analysis import Interval, interval, paired

MIXTURES = tuple(name for name in strong.SETTINGS if strong.model_of(name) == "mixture")
CLAIMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gspo", "grpo", tuple(strong.SETTINGS)),
    ("gspo", "grpo_dual", tuple(strong.SETTINGS)),
    ("grpo R2", "grpo", MIXTURES),
    ("gspo R2", "gspo", MIXTURES),
    ("gspo auto", "gspo", tuple(strong.SETTINGS)),
    ("gspo", "no ratio", tuple(strong.SETTINGS)),
)
CENTRED = (("gspo centred", "gspo"), ("gspo auto centred", "gspo auto"))
COUNTED = ("mixture", "dense", "unbounded", "unbounded dense", "long")
ALPHA, POWER = 0.05, 0.8
Rewards = dict[str, dict[str, dict[int, float]]]
"""By setting, variant and seed."""


def beyond(t: float, freedom: int) -> float:
    """How likely |T| is above |t|, of Student's T with t = sqrt(freedom) tan(angle)."""
    angles = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angles) ** (freedom - 1)
    areas = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(1 - np.interp(math.atan(abs(t) / math.sqrt(freedom)), angles, areas) / areas[-1])


def quantile(share: float, freedom: int) -> float:
    """The t that |T| exceeds with this probability."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, freedom) > share else (low, middle)
    return low


def within(values: Sequence[float], share: float) -> Interval:
    """Mean and the interval that leaves out this share, by Student's t."""
    x = np.asarray(values, float)
    half = quantile(share, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    return Interval(float(x.mean()), float(x.mean() - half), float(x.mean() + half), len(x))


def p_value(differences: Sequence[float]) -> float:
    """Two-sided, by Student's t; 1 where nothing differs."""
    x = np.asarray(differences, float)
    error = x.std(ddof=1) / math.sqrt(len(x))
    return beyond(float(x.mean() / error), len(x) - 1) if error > 0 else float(not x.any())


def holm(values: Sequence[float]) -> list[float]:
    """The p values corrected for how many they are, in their order (Holm 1979)."""
    made, least = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[at]))
        made[at] = least
    return made


def found_by(differences: Sequence[float]) -> float:
    """The smallest difference that as many seeds find in POWER of all studies, uncorrected."""
    freedom = len(differences) - 1
    error = np.std(differences, ddof=1) / math.sqrt(len(differences))
    return float((quantile(ALPHA, freedom) + quantile(2 * (1 - POWER), freedom)) * error)


def runs(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that are judged, each with its setting, seed, variant and choice."""
    made = []
    for each in results:
        own = each["settings"]
        if not own["variant"]:
            chosen = dict(own["runs"])
            here = {"setting": own["setting"], "seed": own["seed"]}
            made += [run | here | {"choice": chosen[run["variant"]]} for run in each["runs"]]
    return made


def rewards(told: Sequence[Mapping[str, Any]]) -> Rewards:
    """The primary outcome. A run whose reward is no number lost everything, which is -1."""
    made: Rewards = {}
    for run in told:
        value = -1.0 if run["reward"] is None else run["reward"]
        made.setdefault(run["setting"], {}).setdefault(run["variant"], {})[run["seed"]] = value
    return made


def settings(results: Sequence[Mapping[str, Any]]) -> str:
    """A table of each setting: choices and outcomes of all variants."""
    told, parts = runs(results), []
    for setting in strong.SETTINGS:
        here = [run for run in told if run["setting"] == setting]
        if not here:
            parts.append(f"{setting}: {NOT_RUN}.\n")
            continue
        head = [
            "",
            "n",
            "rate",
            "range",
            "reward",
            "all steps",
            "over seeds",
            "collapsed",
            "spike",
            "clipped, A < 0 / A > 0",
        ]
        rows = [head, *(_line(name, [run for run in here if run["variant"] == name]) for name in strong.variants(setting))]
        parts.append(f"{setting}:\n\n{markdown(rows)}")
    return "\n".join(parts)


def _line(variant: str, here: Sequence[Mapping[str, Any]]) -> list[str]:
    if not here:
        return [variant, NOT_RUN]
    rate, range_ = spell_choice(variant, here[0]["choice"])
    values = [-1.0 if run["reward"] is None else run["reward"] for run in here]
    clips = [np.mean([run["clipped"][sign] or 0.0 for run in here]) for sign in ("negative", "positive")]
    spikes = [run["spike"] for run in here if run["spike"] is not None]
    return [
        variant, str(len(here)), rate, range_, spelled(interval(values), ".3f"),
        f"{np.mean([run['mean'] for run in here]):.3f}", f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "",
        str(sum(run["collapsed"] for run in here)), f"{np.mean(spikes):.2f}" if spikes else "",
        " / ".join(f"{clip:.0%}" for clip in clips),
    ]  # fmt: skip


def spell_choice(variant: str, choice: Mapping[str, Any]) -> tuple[str, str]:
    """Rate and range, each with a star where it is at the end of what was swept."""
    own, rate = choice["algorithm"], choice["optimizer"]["lr"]
    every = strong.VARIANTS[variant]
    rates = strong.RATES if len(every) > 1 else strong.ALONE
    kind = "clip_target" if own.get("epsilon") == "auto" else "epsilon" if "epsilon" in own else "constants"
    value = own.get(kind)
    star = "*" if len(every) > 1 and own in (every[0], every[-1]) else ""
    text = next(iter(value.values())) if isinstance(value, dict) else value
    return f"{rate:g}{'*' * (rate in (rates[0], rates[-1]))}", "" if text is None else f"{text:g}{star}"


def differences(told: Rewards, setting: str, one: str, other: str) -> list[float]:
    """Paired by seed."""
    here = told.get(setting, {})
    return paired(here.get(one, {}), here.get(other, {}))


def claims(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each claim in each of its settings."""
    told = rewards(runs(results))
    every = [(one, other, setting) for one, other, where in CLAIMS for setting in where]
    each = [differences(told, setting, one, other) for one, other, setting in every]
    if min(map(len, each)) < len(strong.SEEDS):
        return f"{NOT_RUN.capitalize()}: a claim is judged where all seeds of all settings are there.\n"
    corrected = holm([p_value(values) for values in each])
    rows = [["difference", "setting", "n", "of the reward, 95 %", "p, Holm", "verdict"]]
    for (one, other, setting), values, p in zip(every, each, corrected):
        found = interval(values)
        verdict = "above" if found.mean > 0 else "below"
        if p > ALPHA:
            verdict = f"not resolved; {len(values)} seeds find {found_by(values):.3f}"
        rows.append([f"{one} - {other}", setting, str(found.n), spelled(found, "+z.3f"), f"{p:.3f}", verdict])
    return markdown(rows)


def centring(results: Sequence[Mapping[str, Any]]) -> str:
    """Of each form, each setting and the verdict by the rule of the plan."""
    told = rewards(runs(results))
    rows = [["", *strong.SETTINGS, "mean of those counted, 97.5 %", "verdict"]]
    for one, other in CENTRED:
        by_setting = {setting: differences(told, setting, one, other) for setting in strong.SETTINGS}
        if min(map(len, by_setting.values())) < len(strong.SEEDS):
            return f"{NOT_RUN.capitalize()}: the rule needs all seeds of all settings.\n"
        each = {setting: interval(values) for setting, values in by_setting.items()}
        means = [float(np.mean(values)) for values in zip(*(by_setting[setting] for setting in COUNTED))]
        total = within(means, 0.025)
        worse = [setting for setting in COUNTED if each[setting].high < 0]
        verdict = "kept" if total.low > 0 and not worse else "not kept"
        cells: list[str] = [spelled(each[setting], "+z.3f") for setting in strong.SETTINGS]
        rows.append([f"{one} - {other}", *cells, spelled(total, "+z.3f"), verdict])
    return markdown(rows)


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "settings": settings,
    "claims": claims,
    "centring": centring,
}
