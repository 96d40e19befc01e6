import math
import random

import pytest

from gspo.rollout.evaluation import interval


def test_one_completion_a_prompt_gives_wilsons_interval():
    # 40 of 100: Wilson's 95 % interval, worked by hand
    p, n, z = 0.4, 100, 1.959964
    middle = (p + z * z / 200) / (1 + z * z / 100)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    mean, low, high = interval([1.0] * 40 + [0.0] * 60)
    assert (mean, low, high) == pytest.approx((0.4, middle - half, middle + half), abs=2e-3)


@pytest.mark.parametrize("shares", [[0.0] * 50, [1.0] * 50])
def test_certain_looking_accuracies_keep_an_interval(shares):
    mean, low, high = interval(shares)
    assert low <= mean <= high
    assert high - low == pytest.approx(0.0713, abs=1e-3)


def test_no_prompt():
    assert all(math.isnan(x) for x in interval([]))


def test_interval_covers_the_truth_with_correlated_completions():
    """Prompts differ in difficulty, completions to one prompt agree: 95 % of intervals must hold the mean."""
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        shares = []
        for _ in range(80):
            p = rng.betavariate(0.5, 0.5)
            shares.append(sum(rng.random() < p for _ in range(8)) / 8)
        _, low, high = interval(shares)
        covered += low <= 0.5 <= high
    assert 0.92 <= covered / 400 <= 0.985
