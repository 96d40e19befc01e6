import asyncio
import itertools
import math

import numpy as np
import pytest

import gspo
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.preferences import Preferred, bradley_terry, from_ranks, rewards, win_rate, wins
from gspo.rewards.scorer import Rewards
from gspo.rewards.transcripts import rewarded
from tests.data.tools import rollout


def posterior(theta, games):
    """As a naive loop."""
    total = 0.0
    for i in range(len(theta)):
        for j in range(len(theta)):
            total -= games[i][j] * math.log1p(math.exp(theta[j] - theta[i]))
        total -= (math.log1p(math.exp(theta[i])) + math.log1p(math.exp(-theta[i]))) / 2
    return total


def climbed(games):
    """The maximum, by coordinate steps that halve."""
    theta, size = [0.0] * len(games), 1.0
    while size > 1e-7:
        moved = False
        for i, sign in itertools.product(range(len(theta)), (1, -1)):
            tried = [*theta]
            tried[i] += sign * size
            if posterior(tried, games) > posterior(theta, games) + 1e-15:
                theta, moved = tried, True
        size = size if moved else size / 2
    return theta


def test_strengths_are_those_of_a_naive_climber():
    games = np.array([[0, 3, 0.5, 1], [1, 0, 0, 0], [0.5, 2, 0, 0], [0, 0, 4, 0]])
    assert bradley_terry(games) == pytest.approx(climbed(games), abs=1e-4)


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


def test_a_cycle_makes_equals():
    outcomes = [(0, 1, 1), (1, 2, 1), (2, 0, 1)]
    assert rewards(3, outcomes) == pytest.approx([0, 0, 0], abs=1e-12)
    assert rewards(3, outcomes, "win_rate") == [0.5, 0.5, 0.5]


def test_who_was_not_compared_has_no_reward():
    for method in ("bradley_terry", "win_rate"):
        first, second, third = rewards(3, [(0, 1, 1)], method)
        assert first > second and third is None
        assert rewards(1, [], method) == [None] and rewards(0, [], method) == []


def test_win_rates_count_ties_half():
    assert win_rate(wins(3, [(0, 1, 1), (0, 2, 0.5), (1, 2, 0)])) == [0.75, 0, 0.75]


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
        (lambda: from_ranks([1, float("inf")]), "finite"), (lambda: rewards(2, [], "elo"), "bradley_terry, win_rate"),
        (lambda: rewarded(gspo.TrajectoryGroup([]), [1.0]), "1 rewards for 0 trajectories"),
    ],
)  # fmt: skip
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_preferences_as_a_reward_function():
    compared = []

    async def longer(prompt, a, b, worth):
        compared.append((prompt, a, b))
        await asyncio.sleep(0)
        return worth * (len(a) > len(b)) if "?" not in a + b else None

    texts = ["aaa", "a", "aa", "a", "b", "bb", "?", "?"]
    with Rewards(RewardConfig(), TaskConfig(), [Preferred(longer, "win_rate")]) as function:
        scored = function.score([rollout(text, i // 4, prompt=f"p{i // 4}", worth=1) for i, text in enumerate(texts)])
    assert [r.reward for r in scored] == [1, 0, 0.5, 0, 0, 1, None, None]
    assert len(compared) == 3 + 3  # equal completions are one
    assert {prompt for prompt, *_ in compared} == {"p0", "p1"}
    assert scored[0].reward_parts == {"longer": 1}
