import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.advantages import decoupled_advantages, group_advantages, turn_advantages
from tests.objective import reference


def adv(rewards, groups, scale="group"):
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), scale).tolist()


def test_the_explainers_example():
    assert adv([0.8, 0.4, 0.6], [0, 0, 0]) == pytest.approx([1, -1, 0], abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, 1e9])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_rewards_give_zeros_not_noise(value, scale):
    assert adv([value] * 7 + [0.0, 1.0], [0] * 7 + [1, 1], scale)[:7] == [0.0] * 7


def test_roundings_of_a_weighted_sum_are_no_signal():
    assert adv([0.1 + 0.2, 0.3], [0, 0]) == adv([0.1 + 0.2 - 0.3, 0.0], [0, 0]) == [0, 0]


@pytest.mark.parametrize("rewards", [[1e8, 1e8 + 0.01], [0.0, 1e-9], [-1e6, -1e6 + 1e-5], [1e-11, 2e-11]])
def test_small_differences_that_are_no_rounding_teach(rewards):
    assert adv(rewards, [0, 0]) == pytest.approx([-(2**-0.5), 2**-0.5], rel=1e-4)


def test_scales():
    rewards, groups = [1.0, 0.0, 4.0, 0.0], [0, 0, 1, 1]
    assert adv(rewards, groups, "none") == pytest.approx([0.5, -0.5, 2, -2])
    spread = statistics.stdev(rewards)
    assert adv(rewards, groups, "batch") == pytest.approx([x / spread for x in (0.5, -0.5, 2, -2)])


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=12), st.floats(0.1, 10), st.floats(-5, 5))
@settings(deadline=None)
def test_group_advantages_ignore_shift_and_scale_of_rewards(rewards, factor, shift):
    r = torch.tensor(rewards, dtype=torch.float64)
    if float(r.max() - r.min()) < 1e-3:
        return
    group = torch.zeros(len(r), dtype=torch.int64)
    plain, shifted = group_advantages(r, group), group_advantages(r * factor + shift, group)
    torch.testing.assert_close(plain, shifted, rtol=1e-6, atol=1e-8)
    assert float(plain.sum()) == pytest.approx(0, abs=1e-9)
    assert float(plain.std()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("rewards", "groups", "scale", "message"),
    [
        ([1.0, float("nan")], [0, 0], "group", "must be finite"),
        ([1.0, 2.0, 3.0], [0, 0, 1], "group", "at least 2"),
        ([1.0, 2.0], [0, 0], "std", "group, batch, none"),
    ],
)
def test_bad_input(rewards, groups, scale, message):
    with pytest.raises(ValueError, match=message):
        adv(rewards, groups, scale)


def test_turn_advantages_worked_by_hand():
    # Returns to go: (1 + 2, 2) and (0 + .5, .5, .5); discount 1. R = 3 and 0.5: mean 1.75, std 2.5 / sqrt 2.
    advantages = turn_advantages([[1.0, 2.0], [0.0, 0.0, 0.5]], torch.tensor([0, 0]))
    std = 2.5 / 2**0.5
    assert advantages[0].tolist() == pytest.approx([1.25 / std, 0.25 / std])
    assert advantages[1].tolist() == pytest.approx([-1.25 / std] * 3)
    # discount .5: G = (1 + 1, 2) and (.125, .25, .5); R = 2 and .125
    advantages = turn_advantages([[1.0, 2.0], [0.0, 0.0, 0.5]], torch.tensor([0, 0]), "none", 0.5)
    assert advantages[0].tolist() == pytest.approx([2 - 1.0625, 2 - 1.0625])
    assert advantages[1].tolist() == pytest.approx([0.125 - 1.0625, 0.25 - 1.0625, 0.5 - 1.0625])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(-10, 10)), min_size=2, max_size=8),
    st.sampled_from(["group", "batch", "none"]),
)
@settings(deadline=None)
def test_one_reward_at_the_end_gives_every_turn_its_completions_advantage(completions, scale):
    group = torch.zeros(len(completions), dtype=torch.int64)
    whole = group_advantages(torch.tensor([reward for _, reward in completions], dtype=torch.float64), group, scale)
    for A, by_turn in zip(whole, turn_advantages([[0.0] * (k - 1) + [reward] for k, reward in completions], group, scale)):
        assert (by_turn - A).abs().max() <= 1e-12 * max(1.0, float(A.abs()))


def test_equal_returns_teach_nothing_whatever_their_turns():
    advantages = turn_advantages([[1.0, 0.0], [0.0, 1.0]], torch.tensor([0, 0]))
    assert torch.cat(advantages).tolist() == [0, 0, 0, 0]


def apart(rewards, weights, groups):
    made = [[float("nan") if r is None else r for r in row] for row in rewards]
    found = decoupled_advantages(
        torch.tensor(made, dtype=torch.float64).reshape(len(rewards), len(weights)),
        torch.tensor(weights),
        torch.tensor(groups).long(),
    )
    return found.tolist()


def test_rewards_scaled_apart_by_hand():
    """Two groups of two: the first reward tells the first group apart, the second the other, and weighs twice as much."""
    rewards = [[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 2.0]]
    a = 2**-0.5  # of each reward; the sums are a, -a, -2a, 2a, and their standard deviation sqrt(5 / 3)
    expected = [x / (5 / 3) ** 0.5 for x in (a, -a, -2 * a, 2 * a)]
    assert apart(rewards, [1.0, 2.0], [0, 0, 1, 1]) == pytest.approx(expected)


def test_rewards_of_equal_sum_teach_where_they_weigh_differently_and_else_give_exact_zeros():
    opposite = [[0.1, 0.7], [0.3, 0.5], [0.4, 0.4]]
    assert adv([sum(row) for row in opposite], [0, 0, 0]) == [0, 0, 0]
    assert apart(opposite, [1.0, 1.0], [0, 0, 0]) == [0, 0, 0]
    assert apart(opposite, [1.0, 2.0], [0, 0, 0]) == pytest.approx(adv([-0.1, -0.3, -0.4], [0, 0, 0]))
    assert apart([[1 / 3, 0.1]] * 4, [1.0, 1.0], [0, 0, 1, 1]) == [0] * 4
    assert apart([], [1.0, 1.0], []) == []


MAYBE = st.one_of(st.none(), st.floats(-100, 100).map(lambda x: round(x, 3)))


WEIGHT = st.floats(-3, 3).map(lambda x: round(x, 2))


@given(st.lists(st.tuples(MAYBE, MAYBE, st.integers(0, 2)), min_size=2, max_size=12), WEIGHT, WEIGHT)
@settings(max_examples=20, deadline=None)
def test_rewards_scaled_apart_equal_a_naive_loop_and_ignore_the_scale_of_each(rows, weight, other):
    rewards, groups = [row[:2] for row in rows], [row[2] for row in rows]
    found = apart(rewards, [weight, other], groups)
    assert found == pytest.approx(reference.gdpo(rewards, [weight, other], groups), rel=1e-6, abs=1e-6)
    changed = [[None if r is None else 7 * r + 3 for r in row] for row in rewards]
    assert apart(changed, [weight, other], groups) == pytest.approx(found, rel=1e-6, abs=1e-6)
    assert sum(found) == pytest.approx(0, abs=1e-9)
    if any(found):
        assert statistics.stdev(found) == pytest.approx(1)
