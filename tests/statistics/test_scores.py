import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.statistics.intervals import accuracy_interval
from gspo.statistics.scores import ladder, majority, over_these, passes


def test_pass_at_k_of_ten_replies_three_of_which_are_right():
    assert [passes(10, 3, k) for k in (1, 2, 5, 8)] == pytest.approx([0.3, 0.533333, 0.916667, 1.0], abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_counts_the_choices_with_a_right_reply(right, data):
    k = data.draw(st.integers(1, len(right)))
    chosen = list(itertools.combinations(right, k))
    assert passes(len(right), sum(right), k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


def voted(replies):
    """The probability that the vote of these replies is right, ties drawn, by counting."""
    answers = ["right" if right else vote for vote, right in replies if vote is not None]
    if not answers:
        return 0.0
    top = max(map(answers.count, answers))
    tied = {answer for answer in answers if answers.count(answer) == top}
    return ("right" in tied) / len(tied)


REPLIES = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=8)


@settings(deadline=None)
@given(REPLIES, st.data())
def test_maj_at_k_counts_the_choices_whose_vote_is_right(replies, data):
    k = data.draw(st.integers(1, len(replies)))
    chosen = [voted(some) for some in itertools.combinations(replies, k)]
    assert majority(*zip(*replies), k) == pytest.approx(sum(chosen) / len(chosen))


def test_maj_at_k_of_many_replies_that_all_differ_is_quick():
    assert majority([*range(64)], [i < 8 for i in range(64)], 32) > 0.9  # 4 votes for the right one, 1 for each other


def test_each_interval_covers_what_it_is_named_after():
    """And the one over problems like these is several times wider."""
    random_ = random.Random(1)
    shape, n, problems, trials = (0.7, 0.9), 8, 30, 400
    wide = narrow = 0
    for _ in range(trials):
        chances = [random_.betavariate(*shape) for _ in range(problems)]
        correct = [sum(random_.random() < p for _ in range(n)) for p in chances]
        these, like = over_these(correct, n), accuracy_interval([c / n for c in correct])
        narrow += these.low <= sum(chances) / problems <= these.high
        wide += like.low <= shape[0] / sum(shape) <= like.high
        assert these.mean == like.mean and like.high - like.low > 1.5 * (these.high - these.low)
    assert 0.92 < narrow / trials < 0.99
    assert 0.92 < wide / trials < 0.99


def test_an_interval_is_never_without_width_for_want_of_variety():
    these = over_these([32] + [0] * 29, 32)  # the same answer everywhere, right once
    assert these.mean == 1 / 30
    assert these.low < 0.03 < 1 / 30 < 0.045 < these.high
    assert over_these([0] * 30, 32).high > 0
    assert over_these([32] * 30, 32).low < 1


def test_one_reply_a_problem_says_nothing_of_other_replies():
    assert over_these([1, 0, 1, 1], 1).mean == 0.75
    assert math.isnan(over_these([1, 0, 1, 1], 1).low) and math.isnan(over_these([1, 0, 1, 1], 1).high)


def test_k_goes_up_to_the_number_of_replies():
    assert [ladder(n) for n in (1, 8, 10)] == [[1], [1, 2, 4, 8], [1, 2, 4, 8, 10]]
