"""What intervals allow to conclude, in words."""

from __future__ import annotations

import math

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
    collapsed: int,
    of: int,
    measure: str = "reward",
    sign: int = 1,
    unit: str = "seed",
    share: bool = False,
) -> str:
    """What a difference, `name` - `baseline` paired by `unit`, allows to conclude about the measure, in words.

    collapsed: number of units in which `name` collapsed, out of `of`. sign: 1 if more is better, -1 if less is, 0 if
    neither. share: the measure is a share, whose differences are given in percentage points.
    """
    words = f"{measure}: "
    if collapsed:
        words += f"{name} collapsed in {collapsed} of {of} {unit}s. "
    n, both = difference.n, f"{name} against {baseline}"
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
