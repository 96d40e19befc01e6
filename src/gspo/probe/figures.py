"""The figures of a probe: one message each, at most four lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gspo.probe.advice import Advice
from gspo.probe.candidates import YOURS
from gspo.probe.measure import Measured, ProbePlan
from gspo.report.canvas import LIGHT, canvas, finish, save
from gspo.report.plots import Drawn

BESIDE = ("gspo 0.0003", "gspo auto", "grpo 0.2", "reinforce")


def draw(found: Measured, advice: Advice, plan: ProbePlan, out: Path) -> list[Drawn]:
    """All that can be drawn of what was measured."""
    figures = [_updates(found, advice, plan, out), _spread(found, out), _lengths(found, out), _clipped(found, advice, out)]
    return [drawn for drawn in figures if drawn is not None]


def _files(out: Path, name: str) -> tuple[Path, Path]:
    return out / f"{name}.png", out / f"{name}-dark.png"


def shown(found: Measured, advice: Advice) -> list[str]:
    """The candidates of a figure: the run's own, the one recommended, and known ones."""
    recommended = [] if advice.candidate is None else [advice.candidate.name]
    own = next(c.algorithm for c in found.candidates if c.name == YOURS)
    same = {c.name for c in found.candidates if c.name != YOURS and c.algorithm == own and c.replay == "none"}
    names = [c.name for c in found.candidates]
    return list(dict.fromkeys([YOURS, *recommended, *(n for n in BESIDE if n in names and n not in same)]))[:4]


def _updates(found: Measured, advice: Advice, plan: ProbePlan, out: Path) -> Drawn | None:
    """How far an update goes the right way, by age."""
    if not advice.by_age or len(found.ages) < 2:
        return None
    files = _files(out, "updates")
    with canvas(LIGHT) as (sheet, ax):
        for colour, name in zip(LIGHT.series, shown(found, advice)):
            spans = {age: span for age, span in advice.by_age[name].items() if math.isfinite(span.value)}
            ax.plot(list(spans), [span.value for span in spans.values()], "o-", color=colour, lw=1.9, ms=4, label=name)
            low, high = [span.low for span in spans.values()], [span.high for span in spans.values()]
            ax.fill_between(list(spans), low, high, color=colour, alpha=0.12, lw=0)
        finish(sheet, ax, "How far an update goes the right way", "cosine with the right gradient", dots=True)
        ax.set_xlabel("updates since the completions were sampled")
        save(sheet, *files)
    caption = (
        "Cosine of a mini-batch's gradient with the gradient on policy, on average. Band: 95 %, by resampling groups. The "
        f"run trains at ages 0 to {plan.updates - 1}."
    )
    return Drawn("updates", "How far an update goes the right way", caption, *files)


def replayed(found: Measured) -> bool:
    """Whether ratios were read with experts replayed: a dense model has none."""
    return any(name in ("R2", "R3") for age in found.ages for name in age.ratios)


def _spread(found: Measured, out: Path) -> Drawn | None:
    """The spread of the token's log ratio by age, as it is and with experts replayed."""
    lines = {
        "sampler": "as sampled",
        "recompute": "pi_old recomputed",
        "R2": "experts of pi_old",
        "R3": "experts of the sampler",
    }
    files = _files(out, "spread")
    with canvas(LIGHT) as (sheet, ax):
        drawn = False
        for colour, (name, label) in zip(LIGHT.series, lines.items()):
            points = [(age.age, age.ratios[name]["sd_token"]) for age in found.ages if name in age.ratios]
            kept = [(age, value) for age, value in points if value]
            if kept:
                ax.plot(*zip(*kept), "o-", color=colour, lw=1.9, ms=4, label=label)
                drawn = True
        if not drawn:
            return None
        finish(sheet, ax, "How far token ratios have moved", "standard deviation of log w", log=True, dots=True)
        ax.set_xlabel("updates since the completions were sampled")
        save(sheet, *files)
    caption = "Spread of the token's log ratio."
    if replayed(found):
        caption += " Where experts are replayed only the smooth part is left."
    return Drawn("spread", "How far token ratios have moved", caption, *files)


def _lengths(found: Measured, out: Path) -> Drawn | None:
    """The spread of log s and its drift against the length."""
    last = found.ages[-1]
    if len(last.lengths) < 3:
        return None
    T, sd, drift = (list(each) for each in zip(*last.lengths))
    if not all(value > 0 for value in sd):
        return None
    files = _files(out, "lengths")
    with canvas(LIGHT) as (sheet, ax):
        ax.plot(T, sd, "o-", color=LIGHT.series[0], lw=1.9, ms=4, label="spread of log s")
        ax.plot(T, [sd[0] * (T[0] / t) ** 0.5 for t in T], "--", color=LIGHT.series[4], lw=1.4, label="1/sqrt(length)")
        ax.plot(T, [max(abs(value), 1e-12) for value in drift], "o-", color=LIGHT.series[1], lw=1.9, ms=4, label="|drift|")
        finish(sheet, ax, "What length averages out", "nats", log=True)
        ax.set_xscale("log", base=2)
        ax.set_xticks(T, [str(t) for t in T])
        ax.minorticks_off()
        ax.set_xlabel("tokens")
        save(sheet, *files)
    caption = f"Of the completion's log ratio over its first tokens, {last.age} updates after sampling."
    if last.law is not None:
        b, low, high = last.law
        caption += f" The spread goes as length to the power {b:.2f} [{low:.2f}, {high:.2f}]; -0.50 is 1/sqrt(length)."
    return Drawn("lengths", "What length averages out", caption, *files)


def _clipped(found: Measured, advice: Advice, out: Path) -> Drawn | None:
    """What the clip takes on either side, by age."""
    names = _clipping(found, shown(found, advice))[:2]
    if len(found.ages) < 2 or not names:
        return None
    files = _files(out, "clipped")
    with canvas(LIGHT) as (sheet, ax):
        ages = [age.age for age in found.ages]
        for colour, name in zip(LIGHT.series, names):
            for side, style, words in ((0, "o--", "A < 0"), (1, "o-", "A > 0")):
                shares = [100 * age.clipped[name][side] for age in found.ages]
                ax.plot(ages, shares, style, color=colour, lw=1.9, ms=4, label=f"{name}, {words}")
        finish(sheet, ax, "What the clip takes, by sign", "% of the tokens", dots=True)
        ax.set_xlabel("updates since the completions were sampled")
        save(sheet, *files)
    caption = "Share of the tokens that lose their gradient, as if all had that sign of A."
    return Drawn("clipped", "What the clip takes, by sign", caption, *files)


def _clipping(found: Measured, names: Sequence[str]) -> list[str]:
    """Those of these that ever clip."""
    return [name for name in names if any(sum(age.clipped[name]) > 0 for age in found.ages)]
