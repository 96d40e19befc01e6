import math
import random

import numpy as np
import pytest

from gspo.statistics.intervals import (
    T95,
    Z95,
    accuracy_interval,
    interval,
    newcombe,
    over_seeds,
    paired,
    student,
    wilson,
)


def test_one_completion_a_prompt_gives_wilsons_interval():
    # 40 of 100: Wilson's 95 % interval, worked by hand, with t of 99 degrees of freedom
    p, n, z = 0.4, 100, 1.9842
    middle = (p + z * z / 200) / (1 + z * z / 100)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    found = accuracy_interval([1.0] * 40 + [0.0] * 60)
    assert (found.mean, found.low, found.high) == pytest.approx((0.4, middle - half, middle + half), abs=2e-3)


def test_certain_looking_accuracies_keep_an_interval_and_no_prompt_has_none():
    for share in (0.0, 1.0):
        found = accuracy_interval([share] * 50)
        assert found.low <= found.mean == share <= found.high
        assert found.high - found.low == pytest.approx(0.0747, abs=1e-3)
    found = accuracy_interval([])
    assert found.n == 0 and all(map(math.isnan, (found.mean, found.low, found.high)))


@pytest.mark.parametrize("difficulty", [(0.5, 0.5), (4.0, 1.0), (0.1, 0.9), (200.0, 200.0)])
@pytest.mark.parametrize("prompts", [2, 3, 8, 40])
@pytest.mark.parametrize("completions", [1, 8])
def test_the_interval_of_an_accuracy_covers_the_truth(difficulty, prompts, completions):
    """Prompts differ in difficulty, completions to one prompt agree. With the normal's quantile 80 % at two prompts."""
    rng, truth, covered = random.Random(1), difficulty[0] / sum(difficulty), 0
    for _ in range(400):
        p = [rng.betavariate(*difficulty) for _ in range(prompts)]
        found = accuracy_interval([sum(rng.random() < each for _ in range(completions)) / completions for each in p])
        covered += found.low <= truth <= found.high
    assert covered / 400 >= 0.92
    assert covered / 400 <= 0.985 or (prompts, difficulty) != (40, (0.5, 0.5))


def test_the_interval_of_a_difference_is_newcombes():
    """His own examples: table II of the paper, method 10, which takes Wilson's intervals."""
    for (a, m), (b, n), found in (
        ((56, 70), (48, 80), (0.0524, 0.3339)), ((9, 10), (3, 10), (0.1705, 0.8090)), ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)), ((0, 10), (0, 20), (-0.1611, 0.2775)),
    ):  # fmt: skip
        last, first = ((k / of, *wilson(k / of, 0.0, of, Z95)) for k, of in ((a, m), (b, n)))
        assert newcombe(first, last) == pytest.approx(found, abs=6e-5)
    # 0 of 32, then 6 of 32. By hand, with t of 31 degrees of freedom, 0 to 0.1150 and 0.0852 to 0.3637, so the difference
    # is 0.1875, from 0.1875 - hypot(0.1023, 0.1150) to 0.1875 + hypot(0.1762, 0).
    first, last = (accuracy_interval([1.0] * k + [0.0] * (32 - k)) for k in (0, 6))
    assert first.high > last.low  # their own intervals overlap
    found = newcombe((first.mean, first.low, first.high), (last.mean, last.low, last.high))
    assert found == pytest.approx((0.0336, 0.3637), abs=1e-4)


def test_students_quantiles():
    assert list(T95) == sorted(T95, reverse=True)
    # By the tables of the t distribution.
    assert [student(n) for n in (1, 30, 31, 40, 60, 120)] == pytest.approx(
        [12.706, 2.042, 2.0395, 2.0211, 2.0003, 1.9799], abs=1e-4
    )
    assert student(10**9) == pytest.approx(Z95)


def test_students_t_by_hand():
    three = interval([1.0, 2.0, 3.0])  # s = 1, t = 4.303
    assert (three.mean, three.n) == (2.0, 3)
    assert three.high - three.mean == pytest.approx(4.303 / math.sqrt(3))
    single = interval([1.0])
    assert single.mean == 1 and math.isnan(single.low) and not single.resolved
    assert interval([float("nan"), 1.0, 1.0]).n == 2
    assert interval([0.5, 0.9, 0.9], (0.0, 1.0)).high == 1.0  # a share
    assert interval([0.0, 1.0] * 16).high - 0.5 == pytest.approx(2.0395 * math.sqrt(8 / 31) / math.sqrt(32), abs=1e-4)


def test_numbers_that_are_equal_show_no_noise():
    bounds = (-1.0, 1.0)
    for equal in ([0.25, 0.25], [0.1 + 0.2, 0.3], [-1.0] * 9, [0.0, 0.0], [1.0, math.nan, 1.0]):
        found = over_seeds(equal, bounds)
        assert found.mean == pytest.approx(equal[0]) and math.isnan(found.low) and not found.resolved
    assert over_seeds([0.25, 0.5], bounds) == interval([0.25, 0.5], bounds)
    assert over_seeds([], bounds).n == 0


def test_the_interval_covers_as_often_as_it_says():
    draw = np.random.default_rng(0)
    found = [interval(draw.normal(size=5).tolist()) for _ in range(400)]
    assert 0.92 < sum(each.low < 0 < each.high for each in found) / 400 < 0.98


def test_pairs_are_those_that_both_have():
    assert paired({1: 0.5, 2: 0.7, 4: 1.0}, {2: 0.4, 1: 0.1, 3: 0.0}) == pytest.approx([0.4, 0.3])
    assert paired({1: math.nan}, {1: 0.0}) == []
