"""The closing table of the evidence: differences, how many seeds would find one, and that the page has it."""

import numpy as np
import pytest
import strong_told
import verdicts


def spread(n, deviation):
    """n values with this standard deviation."""
    x = np.linspace(-1, 1, n)
    return (x * deviation / x.std(ddof=1)).tolist()


@pytest.mark.parametrize("deviation", [0.01, 0.05, 0.3])
def test_as_many_seeds_as_are_told_find_it_and_fewer_do_not(deviation):
    n = verdicts.seeds_for(spread(5, deviation))
    assert strong_told.found_by(spread(n, deviation), 0.05) <= verdicts.SIZE
    assert n == 2 or strong_told.found_by(spread(n - 1, deviation), 0.05) > verdicts.SIZE


def test_the_seeds_of_a_difference_as_wide_as_its_spread_are_those_of_tables():
    """Cohen's d of 1, paired, two-sided at 5 %, power 80 %: 10 in tables; this approximation is one short at most."""
    assert verdicts.seeds_for(spread(8, 0.05)) in (9, 10, 11)
    assert verdicts.power(spread(4, 100.0))[1] == "over 10,000"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1, 0.11, 0.12, 0.11], "above"),
        ([-0.1, -0.11, -0.12, -0.11], "below"),
        ([0.001, -0.001, 0.0005, 0.0], "equal within 0.02"),
        ([0.0101, 0.0102, 0.0103, 0.0102], "equal within 0.02"),  # told apart, and too small to matter
        ([0.5, -0.5, 0.1, 0.0], "not resolved"),
        ([0.1, 0.11, 0.12], "not judged: 3 seeds"),
    ],
)
def test_a_difference_is_judged_by_its_interval(values, words):
    assert verdicts.said(values) == words
