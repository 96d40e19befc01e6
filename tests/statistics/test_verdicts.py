import math

from gspo.statistics.intervals import Interval
from gspo.statistics.verdicts import spell, verdict


def test_words_at_the_borders(subtests):
    for difference, more, words in (
        (Interval(0.04, 0.01, 0.07, 5), {}, "A is better than B by +0.040 [+0.010, +0.070] at 5 seeds."),
        (Interval(-0.04, -0.07, -0.01, 5), {}, "A is worse than B by -0.040 [-0.070, -0.010] at 5 seeds."),
        (Interval(0.04, 0.0, 0.08, 5), {}, "A against B: no difference resolvable at 5 seeds (+0.040 [+0.000, +0.080])."),
        (Interval(0.1, math.nan, math.nan, 1), {}, "A against B: 1 paired seed, no verdict."),
        (Interval(math.nan, math.nan, math.nan, 0), {}, "A against B: 0 paired seeds, no verdict."),
        (
            Interval(0.25, math.nan, math.nan, 2),
            {},
            "A against B: +0.250 at each of 2 seeds, so no noise is seen: no verdict.",
        ),
        (
            Interval(-0.1, -0.3, 0.1, 3),
            {"collapsed": {"A": (2, 3), "B": (1, 4)}},
            "A collapsed in 2 of 3 seeds. B collapsed in 1 of 4 seeds. A against B: no difference resolvable at 3 seeds",
        ),
        (
            Interval(0.04, 0.01, 0.07, 2),  # of those that did not collapse
            {"collapsed": {"A": (0, 4), "B": (2, 4)}, "missing": 2},
            "B collapsed in 2 of 4 seeds. A against B: no verdict: 2 cells have no value.",
        ),
    ):
        with subtests.test(words):
            assert verdict("A", "B", difference, "x at the end", **more).startswith(f"x at the end: {words}")


def test_intervals_in_tables():
    value = Interval(0.5, 0.25, 0.75, 3)
    assert spell(value) == "0.500 [0.250, 0.750]" and spell(value, ".0%", short=True) == "50%"
    assert spell(Interval(0.5, math.nan, math.nan, 1), "+.1f") == "+0.5"
    assert spell(Interval(math.nan, math.nan, math.nan, 0)) == ""


def test_what_has_no_better_is_higher_or_lower():
    up = Interval(0.04, 0.01, 0.07, 5)
    assert "A is worse than B" in verdict("A", "B", up, "time/step", -1)
    assert "A is higher than B" in verdict("A", "B", up, "entropy", 0)
    assert "A is lower than B" in verdict("A", "B", Interval(-0.04, -0.07, -0.01, 5), "entropy", 0)
