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
DENSE = tuple(name for name in strong.SETTINGS if strong.model_of(name) == "dense")
EVERYWHERE = tuple(strong.SETTINGS)
FAR = ("unbounded", "unbounded dense", "hot", "hot dense")
CONTROLS = (("mixture", "dense"), ("unbounded", "unbounded dense"), ("hot", "hot dense"))
CLAIMS: tuple[tuple[str, str, tuple[str, ...], bool], ...] = (
    ("gspo", "grpo", EVERYWHERE, False),
    ("gspo", "grpo_dual", EVERYWHERE, False),
    ("grpo_dual", "grpo", EVERYWHERE, False),
    ("grpo R2", "grpo", MIXTURES, False),
    ("gspo R2", "gspo", MIXTURES, True),
    ("gspo auto", "gspo", EVERYWHERE, True),
    ("gspo", "no ratio", FAR, False),
)
"""What is compared, where, and whether the claim is that they are equal."""
CENTRED = (("gspo centred", "gspo"), ("gspo auto centred", "gspo auto"))
SHOWN = "int4"  # and not counted for centring
EQUAL = 0.02
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


def found_by(differences: Sequence[float], level: float) -> float:
    """The smallest difference that as many seeds find at this level in POWER of all studies."""
    freedom = len(differences) - 1
    error = np.std(differences, ddof=1) / math.sqrt(len(differences))
    return float((quantile(level, freedom) + quantile(2 * (1 - POWER), freedom)) * error)


def levels(values: Sequence[float]) -> list[float]:
    """The level at which Holm judges each of these p values."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [ALPHA / (len(values) - order.index(at)) for at in range(len(values))]


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
    """The primary outcome."""
    made: Rewards = {}
    for run in told:
        made.setdefault(run["setting"], {}).setdefault(run["variant"], {})[run["seed"]] = run["reward"]
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
    rate, range_ = spell_choice(variant, here[0]["setting"], here[0]["choice"])
    values = [run["reward"] for run in here]
    clipped = [run["clipped"] for run in here if run["clipped"]]
    clips = [np.mean([each[sign] or 0.0 for each in clipped]) for sign in ("negative", "positive")] if clipped else []
    spikes = [run["spike"] for run in here if run["spike"] is not None]
    return [
        variant, str(len(here)), rate, range_, spelled(interval(values), ".3f"),
        f"{np.mean([run['mean'] for run in here]):.3f}", f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "",
        str(sum(run["collapsed"] for run in here)), f"{np.mean(spikes):.2f}" if spikes else "",
        " / ".join(f"{clip:.0%}" for clip in clips),
    ]  # fmt: skip


def spell_choice(variant: str, setting: str, choice: Mapping[str, Any]) -> tuple[str, str]:
    """Rate and range, each with a star where it is at the end of what was swept."""
    own, rate = choice["algorithm"], choice["optimizer"]["lr"]
    plain = strong.ADDED.get(variant, (variant, {}))[0]
    every = strong.VARIANTS[plain]
    rates = strong.RATES if len(every) > 1 else strong.ALONE
    ends = [each * (strong.HOT if setting.startswith("hot") else 1.0) for each in (rates[0], rates[-1])]
    value = own.get("epsilon", own.get("constants"))
    same = [each.get("epsilon", each.get("constants")) == value for each in every]
    text = next(iter(value.values())) if isinstance(value, dict) else value
    spelled_out = "" if text is None else text if isinstance(text, str) else f"{text:g}"
    return f"{rate:g}{'*' * (rate in ends)}", spelled_out + "*" * (len(every) > 1 and (same[0] or same[-1]))


def differences(told: Rewards, setting: str, one: str, other: str) -> list[float]:
    """Paired by seed."""
    here = told.get(setting, {})
    return paired(here.get(one, {}), here.get(other, {}))


def by_seed(told: Rewards, where: Sequence[str], one: str, other: str) -> list[float]:
    """The mean over settings of the difference, one value a seed."""
    return [float(np.mean(values)) for values in zip(*(differences(told, setting, one, other) for setting in where))]


def complete(results: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all seeds of all settings are there."""
    cells = [each for each in results if not each["settings"]["variant"]]
    return len(cells) == len(strong.SEEDS) * len(strong.SETTINGS)


def claims(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each claim, by its mean over settings, then what each setting shows."""
    if not complete(results):
        return f"{NOT_RUN.capitalize()}: claims are judged where all seeds of all settings are there.\n"
    told = rewards(runs(results))
    titles = [f"{one} - {other}" for one, other, _, _ in CLAIMS]
    each = [by_seed(told, where, one, other) for one, other, where, _ in CLAIMS]
    places = [", ".join(where) if len(where) < len(EVERYWHERE) else "everywhere" for _, _, where, _ in CLAIMS]
    halves = [by_seed(told, side, "gspo", "grpo") for side in zip(*CONTROLS)]
    each.append([a - b for a, b in zip(*halves)])
    titles, places = [*titles, "gspo - grpo, mixtures less dense"], [*places, "where both are"]
    equals = [*(equal for *_, equal in CLAIMS), False]
    p = [p_value(values) for values in each]
    rows = [["difference", "settings", "n", "of the reward, corrected interval", "p, Holm", "verdict"]]
    for title, place, values, equal, level, corrected in zip(titles, places, each, equals, levels(p), holm(p)):
        found = within(values, level)
        near = equal and max(-found.low, found.high) < EQUAL
        verdict = f"equal within {EQUAL:g}" if near else "above" if found.mean > 0 else "below"
        if corrected > ALPHA and not near:
            verdict = f"not resolved; {len(values)} seeds find {found_by(values, ALPHA / len(p)):.3f}"
        rows.append([title, place, str(found.n), spelled(found, "+z.3f"), f"{corrected:.3f}", verdict])
    shown: list[list[str]] = [["each setting alone, 95 %", *strong.SETTINGS]]
    for one, other, where, _ in CLAIMS:
        alone = [
            interval(differences(told, setting, one, other)) if setting in where else None for setting in strong.SETTINGS
        ]
        shown.append([f"{one} - {other}", *("" if each is None else spelled(each, "+z.3f") for each in alone)])
    return f"{markdown(rows)}\n{markdown(shown)}"


def centring(results: Sequence[Mapping[str, Any]]) -> str:
    """Of each form, each setting and the verdict by the rule of the plan."""
    if not complete(results):
        return f"{NOT_RUN.capitalize()}: the rule needs all seeds of all settings.\n"
    told = rewards(runs(results))
    rows = [["", *strong.SETTINGS, "mean of those counted, 97.5 %", "verdict"]]
    for one, other in CENTRED:
        sides = [[name for name in side if name != SHOWN] for side in (MIXTURES, DENSE)]
        total = within([float(np.mean(pair)) for pair in zip(*(by_seed(told, side, one, other) for side in sides))], 0.025)
        verdict = "kept" if total.low > 0 else "lost" if total.high < 0 else "not resolved, not kept"
        alone = [spelled(interval(differences(told, setting, one, other)), "+z.3f") for setting in strong.SETTINGS]
        rows.append([f"{one} - {other}", *alone, spelled(total, "+z.3f"), verdict])
    return markdown(rows)


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "settings": settings,
    "claims": claims,
    "centring": centring,
}
