"""Ratings as on Codeforces, from contests with humans: CodeElo-style, with local tests (arXiv 2501.01257).

A model's submissions give it a place among the humans of a contest, by points. Its rating in the contest is the one whose
expected place is that place; its overall rating is the mean over contests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gspo.data.benchmarks.codeforces import Contest
from gspo.statistics.intervals import interval
from gspo.statistics.verdicts import spell

TRIES = 8
"""Maximum number of submissions to a problem; later ones do not count."""
LEAST = 200
"""Contests with at most this many rated humans are left out: a place among few says little."""
PER_TRY = 50
"""Points that each wrong submission before the correct one takes off a problem's points."""
PENALTY = 10
"""Penalty of such a submission in minutes, if problems have no points."""
LOWEST, HIGHEST = -2000.0, 6000.0
"""Search range of a rating. Those of humans lie far inside."""


class Rated(NamedTuple):
    """A rating in one contest. `bound`: "at least" if the place is too good to be the expected one of any rating, "at most"
    if it is too poor, otherwise "".
    """

    contest: str
    place: int
    of: int
    rating: float
    bound: str


def expected(rating: float, humans: Sequence[float]) -> float:
    """The expected place of a rating among humans: 1 + sum_i 1 / (1 + 10^((r - r_i) / 400))."""
    return 1.0 + sum(1.0 / (1.0 + 10.0 ** ((rating - one) / 400.0)) for one in humans)


def rating_at(place: float, humans: Sequence[float], as_published: bool = False) -> tuple[float, str]:
    """The rating whose expected place among humans is `place`, and "at least" or "at most" if it is only a bound.

    The first and the last place are not the expected place of any rating. They get the rating of half a place further in.

    as_published: as the published script, which counts places from 0 and expected places from 1, and searches whole ratings
    up to the best human's + 100. Other places near the ends may have no rating either, and get the highest or the lowest.
    """
    if as_published:
        top = int(max(humans)) + 99
        rating = bisect_left(range(1, top + 1), True, key=lambda one: expected(one, humans) < place - 1)
        return float(rating), "at least" if rating == top else "at most" if not rating else ""
    sought = min(max(place, 1.5), len(humans) + 0.5)
    bound = "at least" if sought > place else "at most" if sought < place else ""
    low, high = LOWEST, HIGHEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        if expected(middle, humans) > sought:  # the rating is too low for so good a place
            low = middle
        else:
            high = middle
    return (low + high) / 2, bound


def points_of(contest: Contest, tries: Mapping[str, Sequence[bool]]) -> tuple[float, float]:
    """The points and the penalty of a model's submissions, for each problem in order: is it correct?

    A solved problem gives max(0, points - 50 x wrong submissions before the correct one). If problems have no points, it
    gives 1 point, and a penalty of 10 per wrong submission.
    """
    total = penalty = 0.0
    for problem, verdicts in tries.items():
        if True not in verdicts[:TRIES]:
            continue
        before = verdicts.index(True)
        if any(contest.points.values()):
            total += max(0.0, contest.points[problem] - PER_TRY * before)
        else:
            total, penalty = total + 1.0, penalty + PENALTY * before
    return total, penalty


def place_of(contest: Contest, points: float, penalty: float) -> int:
    """The place among the rated humans: one more than those who have more points, or as many and less penalty."""
    better = sum((human.points, -human.penalty) > (points, -penalty) for human in contest.humans)
    return better + 1


def rated(contest: Contest, tries: Mapping[str, Sequence[bool]], as_published: bool = False) -> Rated:
    """The rating in one contest."""
    place = place_of(contest, *points_of(contest, tries))
    humans = [human.rating for human in contest.humans]
    return Rated(contest.id, place, len(humans), *rating_at(place, humans, as_published))


class Missing(NamedTuple):
    """Numbers of contests that do not rate."""

    few: int  # with too few rated humans
    partial: int  # with problems that the benchmark lacks
    absent: int  # of the benchmark, but not among the contests

    def described(self) -> list[str]:
        """A phrase per reason."""
        reasons = f"at most {LEAST} rated humans", "which problems are not in the benchmark", "which there are no standings"
        return [f"{count} contest{'s' * (count != 1)} of {why}" for count, why in zip(self, reasons) if count]


def that_rate(contests: Sequence[Contest], problems: Sequence[tuple[str, str]]) -> tuple[list[Contest], Missing]:
    """The contests that rate, and how many do not.

    A contest rates if the benchmark has all of its problems: humans are placed by all of them, and a model must not lose
    points for problems that it was not asked. `problems`: contest and index of each problem of the benchmark. Raises
    ValueError if no contest rates, and for a problem that its contest does not have.
    """
    asked: dict[str, set[str]] = {}
    for name, index in problems:
        asked.setdefault(name, set()).add(index)
    here = [contest for contest in contests if contest.id in asked]
    if not here:
        raise ValueError(f"none of these {len(contests)} contests has a problem of the benchmark")
    kept, few, partial = [], 0, 0
    for contest in here:
        if unknown := sorted(asked[contest.id].difference(contest.points)):
            raise ValueError(f"contest {contest.id}: the benchmark has its problem {unknown[0]}, and its own list does not")
        if len(contest.humans) <= LEAST:
            few += 1
        elif asked[contest.id] != set(contest.points):
            partial += 1
        else:
            kept.append(contest)
    missing = Missing(few, partial, len(asked) - len(here))
    if not kept:
        why = " and ".join(missing.described())
        raise ValueError(f"no contest rates: {why}; give data with all problems of a contest, or no contests")
    return kept, missing


def describe(each: Sequence[Rated], missing: Missing, as_published: bool, tries: int = TRIES) -> str:
    """The mean over contests, with Student's t interval, and what it leaves out. tries: submissions to each problem."""
    mean = interval([one.rating for one in each])
    text = f"CodeElo-style rating, local tests: {spell(mean, '.0f')} over {mean.n} contest{'s' * (mean.n != 1)}."
    for bound, where in (("at least", "the first place"), ("at most", "the last place")):
        if count := sum(one.bound == bound for one in each):
            if as_published:
                where = "a place beyond those that have a rating"
            text += f" In {count} it took {where}, so that its rating there is {bound} what counts."
    if tries < TRIES:
        text += f" Of {TRIES} submissions to a problem that may count it had {tries}, which makes the rating lower."
    if left_out := missing.described():
        text += f" Left out: {', '.join(left_out)}."
    if as_published:
        text += " As published: off by one place."
    return text
