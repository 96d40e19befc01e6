"""What the numbers behind a figure mean, in a sentence beside it.

The thresholds are those of the guard (docs/stability.md); what is usual is what was measured for docs/evidence.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from gspo.report.numbers import INTERVAL, borders, ends, mean, percent
from gspo.report.read import TIMES, RunMetrics
from gspo.statistics.intervals import newcombe


class Judgement(NamedTuple):
    """A sentence; `concern`: it asks for a look."""

    text: str
    concern: bool = False


def judge(name: str, run: RunMetrics, config: Mapping[str, Any] = {}) -> Judgement | None:
    """The judgement of the figure with this name in `plots.PLOTS`; None if it has none, or too few numbers. config: The
    run's config.toml, as far as it is known.
    """
    if name in OF_RANGE:
        found = OF_RANGE[name](run, config.get("algorithm", {}))
    else:
        found = JUDGES[name](run) if name in JUDGES else None
    return found and Judgement(*found)


Found = tuple[str, bool] | None
Judge = Callable[[RunMetrics], Found]
BY_TOKEN = frozenset(("grpo", "grpo_dual", "dr_grpo", "dapo", "minirl", "ppo"))
"""Algorithms with a ratio for each token, and a clip range to match."""


def _accuracy(run: RunMetrics) -> Found:
    x, series = run.rows(INTERVAL)
    if len(x) < 2:
        return None
    first, last = ([float(values[i]) for values in series] for i in (0, -1))
    change, (low, high) = 100 * (last[0] - first[0]), (100 * end for end in newcombe(first, last))
    if low > 0:
        return f"Rose by {change:.1f} points [{low:.1f}, {high:.1f}], more than chance explains.", False
    if high < 0:
        return f"Fell by {-change:.1f} points [{-high:.1f}, {-low:.1f}], more than chance explains.", True
    return f"Changed by {change:+z.1f} points [{low:z.1f}, {high:z.1f}], which may be chance.".replace("-", "−"), False


def _reward(run: RunMetrics) -> Found:
    steps, values = run.series("reward")
    values = values[steps >= max(borders(run), default=0)]  # of the last stage: others have other prompts
    if len(values) < 8:
        return None
    *_, before, last = quarters = [float(part.mean()) for part in np.array_split(values, 4)]
    noise = 3 * float(np.std(np.diff(values))) / (len(values) // 4) ** 0.5  # of the difference of two quarters
    if max(quarters) - last > noise:
        return f"The last quarter, {last:.2f}, is below the best, {max(quarters):.2f}.", True
    return ("Still rising at the end: more steps may help." if last - before > noise else "Level at the end."), False


def _clip(run: RunMetrics, algorithm: Mapping[str, Any]) -> Found:
    share, noise = mean(run, "clip_ratio/tokens"), mean(run, "clip_ratio/noise_only") or 0.0
    ranges = run.series("clip/epsilon")[1]
    if share is None or not len(ranges):
        return None
    text, width = f"{percent(share)} clipped: ", float(np.median(ranges))
    by_token = algorithm["name"] in BY_TOKEN if "name" in algorithm else width >= 0.05
    low, high = (0.0, 0.02) if by_token else (0.03, 1 / 3) if width < 1e-3 else (2e-3, 1 / 3)
    if noise > max(0.01, share / 2):
        return f"{text}mostly by rounding. Raise the precision.", True
    if algorithm.get("epsilon") == "auto":
        return f"{text}the range follows algorithm.clip_target.", False
    if (learning := mean(run, "clip_ratio/with_advantage") or share) > high:  # as the guard counts
        where = "" if learning == share else f", and {percent(learning)} of those with an advantage"
        return f"{percent(share)} clipped{where}: much for this range; such runs learned more slowly. Widen it.", True
    return text + ("usual for this range." if share >= low else "little for this range, so the clip hardly acts."), False


def _of_range(run: RunMetrics, key: str) -> float | None:
    """The median of a metric as a multiple of the clip range."""
    x, (values, low) = run.rows((key, "clip/epsilon"))
    return float(np.median(values / low)) if len(x) and low.all() else None


def _ratio(run: RunMetrics) -> Found:
    times = _of_range(run, "ratio/std")
    if times is None:
        return None
    where = "far within it" if times < 0.2 else "far beyond it" if times > 10 else "usual"
    return f"The spread is {times:.2g} times the clip range: {where}.", times > 10


def _noise(run: RunMetrics, algorithm: Mapping[str, Any]) -> Found:
    share = _of_range(run, "ratio/noise_floor")
    if share is None or algorithm.get("name") in BY_TOKEN:  # the noise is that of whole completions
        return None
    clipped = mean(run, "clip_ratio/noise_only")
    if share >= 1 and clipped is not None and clipped < 0.01:  # as with a recomputed pi_old
        return "It reaches the clip range, but rounding clips less than 1 % of the tokens.", False
    if share >= 1:
        return "It reaches the clip range: rounding alone clips. Raise the precision.", True
    return f"{percent(share)} of the range: rounding " + ("is harmless." if share < 0.1 else "matters."), False


def _entropy(run: RunMetrics) -> Found:
    if not len(run.series("reward")[0]) and len(run.series("loss")[0]):  # imitation lowers it
        return None
    first, last = ends(run, "entropy")[:2] if len(run.series("entropy")[0]) > 1 else (0.0, 0.0)
    if first <= 0:
        return None
    text = f"At {percent(last / first)} of its start"
    if 0.3 <= last / first <= 3:
        return f"{text}: no sign of a collapse.", False
    return text + (": the policy explores little." if last < first else ": the policy may be falling apart."), True


def _experts(run: RunMetrics) -> Found:
    share = mean(run, "moe/volatility")
    if share is None:
        return None
    much = share > 0.1  # what the paper reports of 48 layers
    return f"{percent(share)} change: " + ('much. Set algorithm.router_replay = "R3".' if much else "usual."), much


def _time(run: RunMetrics) -> Found:
    totals = {name: float(run.series(key)[1].sum()) for key, name in TIMES}
    name, most = max(totals.items(), key=lambda item: item[1])
    return (f"The largest part, {percent(most / sum(totals.values()))}, is {name}.", False) if most > 0 else None


def _no_signal(run: RunMetrics) -> Found:
    share = mean(run, "frac_reward_zero_std")
    if share is None or any(len(run.series(key)[0]) for key in ("teacher/kl", "value/loss")):  # these teach all groups
        return None
    return f"{percent(share)} teach nothing: " + ("take other prompts." if share > 0.5 else "usual."), share > 0.5


def _mean(key: str, limit: float, few: str, many: str, form: Callable[[float], str] = percent) -> Judge:
    """Judges the mean of a metric by a limit."""

    def judge(run: RunMetrics) -> Found:
        value = mean(run, key)
        return None if value is None else (f"{form(value)} {many if value > limit else few}", value > limit)

    return judge


JUDGES: dict[str, Judge] = {
    "accuracy": _accuracy, "reward": _reward, "ratio": _ratio, "entropy": _entropy, "experts": _experts, "time": _time,
    "no_signal": _no_signal,
    "kl": _mean(
        "mismatch/kl", 1e-2, "between sampler and trainer: small.", "between sampler and trainer: large.", "{:.1e}".format
    ),
    "truncated": _mean("completions/clipped_ratio", 0.15, "cut off: few.", "cut off: raise rollout.max_completion_length."),
}  # fmt: skip
OF_RANGE = {"clip": _clip, "noise": _noise}
