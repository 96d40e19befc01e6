"""How many seeds would find a difference. `lab/studies/report.py --check` compares the table of verdicts with the page."""

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
