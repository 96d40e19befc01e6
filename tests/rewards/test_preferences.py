import itertools
import math

import numpy as np
import pytest

import gspo
from gspo.rewards.preferences import bradley_terry, from_ranks, rewards, wins
from gspo.rewards.transcripts import rewarded


def posterior(theta, games):
    """As a naive loop."""
    total = 0.0
    for i in range(len(theta)):
        for j in range(len(theta)):
            total -= games[i][j] * math.log1p(math.exp(theta[j] - theta[i]))
        total -= (math.log1p(math.exp(theta[i])) + math.log1p(math.exp(-theta[i]))) / 2
    return total


def test_strengths_maximise_the_posterior():
    """It is concave: what no step along a coordinate improves is its maximum."""
    games = np.array([[0, 3, 0.5, 1], [1, 0, 0, 0], [0.5, 2, 0, 0], [0, 0, 4, 0]])
    theta = bradley_terry(games)
    for i, step in itertools.product(range(4), (2e-4, -2e-4)):
        moved = [*theta]
        moved[i] += step
        assert posterior(moved, games) < posterior(theta, games)


def test_strengths_by_hand():
    """One win of a over b: theta_a = -theta_b = x with 1 - sigmoid(2x) = sigmoid(x) - 1/2. With u = e^x this is
    1/(1 + u^2) = (u - 1)/(2 u + 2), that is u^3 - u^2 - u - 3 = 0, whose root is 2.13040.
    """
    u = 2.1303954347672786
    assert u**3 - u**2 - u - 3 == pytest.approx(0, abs=1e-9)
    assert bradley_terry(wins(2, [(0, 1, 1)])) == pytest.approx([math.log(u), -math.log(u)])


def test_all_wins_stay_finite_and_in_order():
    games = wins(8, [(i, j, 1) for i in range(8) for j in range(i + 1, 8)] * 1000)
    strengths = bradley_terry(games)
    assert all(math.isfinite(x) for x in strengths) and strengths == sorted(strengths, reverse=True)
    assert sum(strengths) == pytest.approx(0, abs=1e-6)


def test_equal_records_are_equal_strengths_in_any_order():
    """Where each has met each as often, a strength depends on the number of wins alone."""
    draw = np.random.default_rng(0)
    for games_each in [1, 500] * 100:
        n = int(draw.integers(2, 9))
        played = [(i, j, draw.choice([0, 0.5, 1])) for i, j in itertools.combinations(range(n), 2)] * games_each
        games, order = wins(n, played), draw.permutation(n)
        strengths, won = bradley_terry(games), games.sum(1)
        assert len({*zip(won, strengths)}) == len({*won})
        assert bradley_terry(games[np.ix_(order, order)]) == [strengths[i] for i in order]


@pytest.mark.parametrize(
    ("outcomes", "strengths"),
    [
        ([(0, 1, 1), (1, 2, 1), (2, 0, 1)], [0, 0, 0]),  # a cycle makes equals
        ([(0, 1, 0.5)], [0, 0, None]),  # who was not compared has no reward
        ([], [None] * 3),
    ],
)
def test_rewards_of_three(outcomes, strengths):
    assert rewards(3, outcomes) == strengths


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([1, 2, 3], [1, 0.5, 0]), ([3, 1, 2], [0, 1, 0.5]), ([1, 1, 1], [0.5] * 3), ([1, 1, 2], [0.75, 0.75, 0]),
        ([1, None, 5], [1, None, 0]), ([2], [None]), ([], []), ([1, None], [None, None]),
    ],
)  # fmt: skip
def test_ranks_are_evenly_spaced(ranks, expected):
    assert from_ranks(ranks) == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wins(2, [(0, 0, 1)]), "two different completions"), (lambda: wins(2, [(0, 2, 1)]), "numbered from 0 to 1"),
        (lambda: wins(2, [(0, 1, float("nan"))]), "expected 1 "), (lambda: wins(2, [(0, 1, 2)]), "expected 1 "),
        (lambda: from_ranks([1, float("inf")]), "finite"),
        (lambda: rewarded(gspo.TrajectoryGroup([]), [1.0]), "1 rewards for 0 trajectories"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
