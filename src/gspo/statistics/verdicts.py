"""What intervals allow to conclude, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gspo.statistics.intervals import Interval


def spell(value: Interval, form: str = ".3f", short: bool = False) -> str:
    """Formats an interval; with `short`, only the mean. "" if there is none."""
    if math.isnan(value.mean):
        return ""
    mean = format(value.mean, form)
    return mean if short or math.isnan(value.low) else f"{mean} [{value.low:{form}}, {value.high:{form}}]"


def in_points(difference: Interval) -> str:
    """Formats a difference of two shares, in percentage points."""
    mean, low, high = (100 * x for x in (difference.mean, difference.low, difference.high))
    return f"{spell(Interval(mean, low, high, difference.n), '+z.1f')} points"


def verdict(
    name: str,
    baseline: str,
    difference: Interval,
    measure: str = "reward",
    sign: int = 1,
    unit: str = "seed",
    share: bool = False,
    collapsed: Mapping[str, tuple[int, int]] = {},
    missing: int = 0,
) -> str:
    """What a difference, `name` - `baseline` paired by `unit`, allows to conclude about the measure, in words.

    sign: 1 if more is better, -1 if less is, 0 if neither. share: the measure is a share, whose differences are given in
    percentage points. collapsed: of both sides, the number of units in which each collapsed, and out of how many. missing:
    number of cells without a value; those left are a choice, of those that did not collapse, say.
    """
    words = f"{measure}: "
    for side, (count, of) in collapsed.items():
        words += f"{side} collapsed in {count} of {of} {unit}s. " if count else ""
    n, both = difference.n, f"{name} against {baseline}"
    if missing:
        return words + f"{both}: no verdict: {missing} cell{'s have' if missing > 1 else ' has'} no value."
    if n < 2:
        return words + f"{both}: {n} paired {unit}{'s' * (n != 1)}, no verdict."
    span = in_points(difference) if share else spell(difference, "+z.3f")
    if math.isnan(difference.low):
        return words + f"{both}: {span} at each of {n} {unit}s, so no noise is seen: no verdict."
    if not difference.resolved:
        return words + f"{both}: no difference resolvable at {n} {unit}s ({span})."
    more = difference.mean > 0
    relation = ("better" if more == (sign > 0) else "worse") if sign else ("higher" if more else "lower")
    return words + f"{name} is {relation} than {baseline} by {span} at {n} {unit}s."
