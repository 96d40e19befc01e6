"""What strong.py has found, as tables: of each setting, of the claims by the rule of its plan, and of centring."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import strong
from laws import NOT_RUN, markdown, spelled

from gspo.statistics.intervals import Interval, interval, noiseless, paired

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
OF_REWARDS, WIDEST = (-1.0, 1.0), 2.0  # bounds of a reward, and of a difference of two
NOT_JUDGED = "not judged: at an end of the sweep"
ALPHA, POWER = 0.05, 0.8
Rewards = dict[str, dict[str, dict[int, float]]]
"""By setting, variant and seed."""


ANGLES = np.linspace(0, math.pi / 2, 20_001)


@functools.cache
def _areas(freedom: int) -> np.ndarray:
    density = np.cos(ANGLES) ** (freedom - 1)
    return np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])


def beyond(t: float, freedom: int) -> float:
    """How likely |T| is above |t|, of Student's T with t = sqrt(freedom) tan(angle)."""
    areas = _areas(freedom)
    return float(1 - np.interp(math.atan(abs(t) / math.sqrt(freedom)), ANGLES, areas) / areas[-1])


@functools.cache
def quantile(share: float, freedom: int) -> float:
    """The t that |T| exceeds with this probability."""
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, freedom) > share else (low, middle)
    return low


def within(values: Sequence[float], share: float, most: float = WIDEST) -> Interval:
    """Mean and the interval that leaves out this share, by Student's t. most: no value is further from 0."""
    x = np.asarray(values, float)
    if noiseless(x) and x.any():
        return Interval(float(x.mean()), math.nan, math.nan, len(x))
    half = quantile(share, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x))
    return Interval(float(x.mean()), max(float(x.mean() - half), -most), min(float(x.mean() + half), most), len(x))


def p_value(differences: Sequence[float]) -> float:
    """Two-sided, by Student's t; 1 where nothing differs, or all by the same, so that no noise is seen."""
    x = np.asarray(differences, float)
    if noiseless(x):
        return 1.0
    return beyond(float(x.mean() / (x.std(ddof=1) / math.sqrt(len(x)))), len(x) - 1)


def holm(values: Sequence[float]) -> list[float]:
    """The p values corrected for how many they are, in their order (Holm 1979)."""
    made, least = [0.0] * len(values), 0.0
    for rank, at in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        least = max(least, min(1.0, (len(values) - rank) * values[at]))
        made[at] = least
    return made


def found_by(differences: Sequence[float], level: float) -> float:
    """The smallest difference that as many seeds find at this level in POWER of all studies."""
    return reach(len(differences), level) * float(np.std(differences, ddof=1))


def reach(n: int, level: float) -> float:
    """The same for n seeds, in standard deviations of the differences."""
    return (quantile(level, n - 1) + quantile(2 * (1 - POWER), n - 1)) / math.sqrt(n)


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
        made.setdefault(run["setting"], {}).setdefault(run["variant"], {})[run["seed"]] = run["mean"]
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
            "all steps",
            "over seeds",
            "last steps",
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
    values = [run["mean"] for run in here]
    clipped = [run["clipped"] for run in here if run["clipped"]]
    clips = [np.mean([each[sign] or 0.0 for each in clipped]) for sign in ("negative", "positive")] if clipped else []
    spikes = [run["spike"] for run in here if run["spike"] is not None]
    return [
        variant, str(len(here)), rate, range_, spelled(interval(values, OF_REWARDS), ".3f"),
        f"{np.std(values, ddof=1):.3f}" if len(values) > 1 else "", f"{np.mean([run['reward'] for run in here]):.3f}",
        str(sum(run["collapsed"] for run in here)), f"{np.mean(spikes):.2f}" if spikes else "",
        " / ".join(f"{clip:.0%}" for clip in clips),
    ]  # fmt: skip


def spell_choice(variant: str, setting: str, choice: Mapping[str, Any]) -> tuple[str, str]:
    """Rate and range, each with a star where something beyond it might be better."""
    rate, own = choice["optimizer"]["lr"], choice["algorithm"]
    value = own.get("epsilon", own.get("constants"))
    value = next(iter(value.values())) if isinstance(value, dict) else value
    bound = own.get("epsilon_high", value)
    text = "" if value is None else "none" if bound == strong.NONE else value if isinstance(value, str) else f"{value:g}"
    rate_ends, range_ends = ends(variant, setting, choice)
    return f"{rate:g}{'*' * rate_ends}", text + "*" * range_ends


def ends(variant: str, setting: str, choice: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether its rate is at an end of those that were swept, and its range the tightest: the widest is none at all."""
    every = strong.VARIANTS[strong.ADDED.get(variant, (variant, {}))[0]]
    rates = strong.RATES if len(every) > 1 else strong.ALONE
    times = strong.HOT if setting.startswith("hot") else 1.0
    tightest = all(choice["algorithm"][key] == value for key, value in every[0].items())
    return choice["optimizer"]["lr"] in (times * rates[0], times * rates[-1]), len(every) > 1 and tightest


def starred(told: Sequence[Mapping[str, Any]], names: Sequence[str], where: Sequence[str]) -> bool:
    """Whether one of these variants was at an end of the sweep in one of these settings."""
    return any(
        any(ends(run["variant"], run["setting"], run["choice"]))
        for run in told
        if run["variant"] in names and run["setting"] in where
    )


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


@dataclass(frozen=True)
class Tested:
    """A claim with what it is judged by. values: a difference a seed, none further from 0 than most. end: whether one of its
    variants was at an end of the sweep.
    """

    title: str
    place: str
    values: Sequence[float]
    most: float
    equal: bool
    end: bool

    def row(self, level: float, corrected: float, first: float) -> list[str]:
        """Of the table. level: Holm's for this claim; first: that of the smallest p."""
        found = within(self.values, level, self.most)
        near = self.equal and max(-found.low, found.high) < EQUAL
        verdict = f"equal within {EQUAL:g}" if near else "above" if found.mean > 0 else "below"
        if corrected > ALPHA and not near:
            verdict = f"not resolved; {len(self.values)} seeds find {found_by(self.values, first):.3f}"
        told = spelled(found, "+z.3f")
        return [self.title, self.place, str(found.n), told, f"{corrected:.3f}", NOT_JUDGED if self.end else verdict]


def tested(judged: Sequence[Mapping[str, Any]]) -> list[Tested]:
    """All claims of the plan, with the runs that are judged."""
    told, made = rewards(judged), []
    for one, other, where, equal in CLAIMS:
        place = ", ".join(where) if len(where) < len(EVERYWHERE) else "everywhere"
        end = starred(judged, (one, other), where)
        made.append(Tested(f"{one} - {other}", place, by_seed(told, where, one, other), WIDEST, equal, end))
    mixtures, dense = (by_seed(told, side, "gspo", "grpo") for side in zip(*CONTROLS))
    end = starred(judged, ("gspo", "grpo"), [*itertools.chain(*CONTROLS)])
    less = [a - b for a, b in zip(mixtures, dense)]
    return [*made, Tested("gspo - grpo, mixtures less dense", "where both are", less, 2 * WIDEST, False, end)]


def judged(results: Sequence[Mapping[str, Any]]) -> tuple[list[Tested], list[list[str]]]:
    """All claims, and a row for each at its corrected level."""
    every = tested(runs(results))
    p = [p_value(each.values) for each in every]
    return every, [each.row(level, corrected, ALPHA / len(p)) for each, level, corrected in zip(every, levels(p), holm(p))]


def claims(results: Sequence[Mapping[str, Any]]) -> str:
    """A row for each claim, by its mean over settings, then what each setting shows."""
    if not complete(results):
        return f"{NOT_RUN.capitalize()}: claims are judged where all seeds of all settings are there.\n"
    rows = [["difference", "settings", "n", "of the reward, corrected interval", "p, Holm", "verdict"], *judged(results)[1]]
    told = rewards(runs(results))
    shown: list[list[str]] = [["each setting alone, 95 %", *strong.SETTINGS]]
    for one, other, where, _ in CLAIMS:
        alone = [_alone(told, setting, one, other) if setting in where else "" for setting in strong.SETTINGS]
        shown.append([f"{one} - {other}", *alone])
    return f"{markdown(rows)}\n{markdown(shown)}"


def _alone(told: Rewards, setting: str, one: str, other: str) -> str:
    return spelled(interval(differences(told, setting, one, other), (-WIDEST, WIDEST)), "+z.3f")


def centring(results: Sequence[Mapping[str, Any]]) -> str:
    """Of each form, each setting and the verdict by the rule of the plan."""
    if not complete(results):
        return f"{NOT_RUN.capitalize()}: the rule needs all seeds of all settings.\n"
    told = rewards(runs(results))
    rows = [["", *strong.SETTINGS, "mean of those counted, 97.5 %", "verdict"]]
    for (one, other), (title, _, total, verdict) in zip(CENTRED, centred(results)):
        alone = [_alone(told, setting, one, other) for setting in strong.SETTINGS]
        rows.append([title, *alone, spelled(total, "+z.3f"), verdict])
    return markdown(rows)


def centred(results: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[float], Interval, str]]:
    """Of each form: its difference, of which one value a seed, the interval by the rule, and the verdict."""
    ran, made = runs(results), []
    told = rewards(ran)
    sides = [[name for name in side if name != SHOWN] for side in (MIXTURES, DENSE)]
    for one, other in CENTRED:
        values = [float(np.mean(pair)) for pair in zip(*(by_seed(told, side, one, other) for side in sides))]
        total = within(values, 0.025)
        verdict = "kept" if total.low > 0 else "lost" if total.high < 0 else "not resolved, not kept"
        verdict = f"{NOT_JUDGED}, not kept" if starred(ran, (one, other), EVERYWHERE) else verdict
        made.append((f"{one} - {other}", values, total, verdict))
    return made


TABLES: dict[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "settings": settings,
    "claims": claims,
    "centring": centring,
}
