import math
import random

import pytest

from gspo.rollout.statistics import T95, Z95, accuracy_interval, student


def test_one_completion_a_prompt_gives_wilsons_interval():
    # 40 of 100: Wilson's 95 % interval, worked by hand, with t of 99 degrees of freedom
    p, n, z = 0.4, 100, 1.9842
    middle = (p + z * z / 200) / (1 + z * z / 100)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    mean, low, high = accuracy_interval([1.0] * 40 + [0.0] * 60)
    assert (mean, low, high) == pytest.approx((0.4, middle - half, middle + half), abs=2e-3)


@pytest.mark.parametrize("shares", [[0.0] * 50, [1.0] * 50])
def test_certain_looking_accuracies_keep_an_interval(shares):
    mean, low, high = accuracy_interval(shares)
    assert low <= mean <= high
    assert high - low == pytest.approx(0.0747, abs=1e-3)


def test_no_prompt():
    assert all(math.isnan(x) for x in accuracy_interval([]))


def test_interval_covers_the_truth_with_correlated_completions():
    """Prompts differ in difficulty, completions to one prompt agree: 95 % of intervals must hold the mean."""
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        shares = []
        for _ in range(80):
            p = rng.betavariate(0.5, 0.5)
            shares.append(sum(rng.random() < p for _ in range(8)) / 8)
        _, low, high = accuracy_interval(shares)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.985


@pytest.mark.parametrize("difficulty", [(0.5, 0.5), (4.0, 1.0), (0.1, 0.9), (200.0, 200.0)])
@pytest.mark.parametrize("prompts", [2, 3, 5, 8])
@pytest.mark.parametrize("completions", [1, 8])
def test_it_covers_with_few_prompts(difficulty, prompts, completions):
    """With the normal's quantile 80 % at two prompts."""
    rng, truth, covered = random.Random(1), difficulty[0] / sum(difficulty), 0
    for _ in range(400):
        p = [rng.betavariate(*difficulty) for _ in range(prompts)]
        _, low, high = accuracy_interval([sum(rng.random() < each for _ in range(completions)) / completions for each in p])
        covered += low <= truth <= high
    assert covered / 400 >= 0.92


def test_students_quantiles():
    assert list(T95) == sorted(T95, reverse=True)
    # By the tables of the t distribution.
    assert [student(n) for n in (1, 30, 31, 40, 60, 120)] == pytest.approx(
        [12.706, 2.042, 2.0395, 2.0211, 2.0003, 1.9799], abs=1e-4
    )
    assert student(10**9) == pytest.approx(Z95)
