"""The sequential test for a fall of the reward: by hand, and on policies that stay, learn and break."""

import math
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.training.reward_fall import RewardFall
from lab.speed.guard import BREAK, BROKEN, first_calls, simulated, steps

FEW = 4  # runs of 1,000 steps each; lab/speed/guard.py has the rates


def seen(test, rewards, **noise):
    return [test.observe({"reward": reward} | noise) for reward in rewards]


def test_a_standstill_by_hand():
    test = RewardFall(5)
    seen(test, [0.1] * 19, reward_se=0.1)
    assert test.standstill(10) is None  # too few steps
    seen(test, [0.3], reward_se=0.1)
    assert test.standstill(10) == pytest.approx((0.1, 0.12))
    seen(test, [0.3] * 3, reward_se=0.1)  # 0.18 is 0.08 above; two standard errors are 2 sqrt(0.02 / 10) = 0.089
    assert test.standstill(10) == pytest.approx((0.1, 0.18))
    seen(test, [0.3], reward_se=0.1)
    assert test.standstill(10) is None


def test_a_fall_by_hand():
    *quiet, fall = seen(RewardFall(2), [0.8] * 8 + [0.1, 0.1], reward_se=0.02)
    assert quiet == [None] * 9
    assert (fall.mean, fall.best, fall.floor, fall.steps) == (pytest.approx(0.1), pytest.approx(0.8), 0.0, 2)
    last = 0.49 / 2 / 8 + 0.49 / 2 / 9  # variances of the last two steps, by 8 and 9 differences, one of them not 0
    assert fall.errors == pytest.approx(0.7 / math.sqrt(0.02**2 / 2 + last / 4))
    assert str(fall).startswith("the reward, 0.1 over 2 steps, is 12% of its best (0.8), a fall of 5.")


def test_the_noise_between_prompts_counts():
    assert seen(RewardFall(2), [0.8] * 8 + [0.1, 0.1], reward_se=0.2)[-1] is None


@pytest.mark.parametrize(
    ("best", "last", "noise", "share"),
    [
        (0.8, 0.2, {}, 0.25),  # never negative: from 0
        (-0.1, -1.0, {"reward_min": -9.0, "reward_std_batch": 1.0}, 0.4),  # from 1.5 standard deviations below the best
        (0.5, -0.5, {"reward_min": -1.0, "reward_std_batch": 1.0}, 1 / 3),  # from -1, the lowest that there is
        (-0.1, -1.0, {}, -math.inf),  # of single rewards nothing is known
    ],
)
def test_what_is_left_is_counted_from_the_floor(best, last, noise, share):
    fall = seen(RewardFall(5), [best] * 20 + [last] * 5, **noise)[-1]
    assert fall.share == pytest.approx(share)


def test_rewards_without_any_noise_do_not_fall_by_rounding():
    assert not any(seen(RewardFall(3), [-0.1 * 3] * 50 + [-0.3] * 50))


def test_what_is_not_a_number_is_passed_over():
    test = RewardFall(2)
    assert seen(test, [None, math.nan, "x", 0.8], reward_se=math.nan) == [None] * 4
    assert len(test.state_dict()["rows"]) == 1


def test_after_a_rewind_the_best_stays_and_the_recent_begins_anew():
    test = RewardFall(3)
    assert seen(test, [0.8] * 10 + [0.1] * 4)[-1] is not None
    test.rewound()
    assert not test.holds(0.5) and seen(test, [0.1] * 2) == [None] * 2
    assert seen(test, [0.1])[-1].best == pytest.approx(0.8)
    assert not test.holds(0.5) and seen(test, [0.8] * 4) and test.holds(0.5)


@settings(deadline=None)
@given(st.lists(st.floats(-2, 2), min_size=3, max_size=40), st.integers(0, 40), st.integers(1, 4))
def test_a_resumed_one_says_the_same(rewards, cut, window):
    one, other = RewardFall(window), RewardFall(window)
    for step, reward in enumerate(rewards):
        if step == cut:
            other = RewardFall(window)
            other.load_state_dict(one.state_dict())
        line = {"reward": reward, "reward_se": 0.1, "reward_std_batch": 0.3, "reward_min": reward - 1}
        assert one.observe(line) == other.observe(line) and one.holds(0.7) == other.holds(0.7)


@pytest.mark.parametrize(
    "name", ["0/1, 1 % right", "0/1, 5 % right", "N(0.1, 1)", "N(0, 1)", "learns from N(-1, 1) to N(0.5, 1)"]
)
def test_a_policy_that_does_not_fall_is_not_called_collapsed(name):
    """The mean over its running best, without noise, stopped 80 to 100 % of these."""
    assert [simulated(name, 1000 + seed)[2] for seed in range(FEW)] == [0] * FEW


@pytest.mark.parametrize(
    ("name", "within"),
    [("0/1, 5 % right, then 0", 60), ("0/1, 50 % right, then 5 %", 20), ("N(-0.1, 1), then N(-1, 1)", 25)],
)
def test_a_policy_that_breaks_is_found(name, within):
    for seed in range(FEW):
        assert first_calls(islice(steps(BROKEN[name], 1000 + seed), BREAK + within))[2] > BREAK
