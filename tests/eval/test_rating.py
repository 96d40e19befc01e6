import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.data.benchmarks.codeforces import Contest, Human
from gspo.eval.rating import Missing, describe, expected, place_of, points_of, rated, rating_at, that_rate

HUMANS = [1200, 1400, 1600, 1800, 2000]


def test_the_rating_of_a_place_among_five_humans():
    """The first and the last place give bounds."""
    found = [rating_at(place, HUMANS) for place in range(1, 7)]
    assert [rating for rating, _ in found[1:]] == pytest.approx([1961.33, 1712.08, 1487.92, 1238.67, 1062.87], abs=0.005)
    assert found[0][0] > 1962 and [bound for _, bound in found] == ["at least", "", "", "", "", "at most"]


def test_the_published_script_is_off_by_one_place_and_gives_the_best_places_a_bound():
    published = [rating_at(place, HUMANS, as_published=True) for place in range(1, 7)]
    assert [rating for rating, _ in published] == [2099, 2099, 1961, 1712, 1487, 1238]
    assert [bound for _, bound in published] == ["at least"] * 2 + [""] * 4
    best = rated(contest((5000, 0, 0)), {"A": [True]}, as_published=True)
    text = describe([best], Missing(0, 0, 0), True)
    assert "In 1 it took a place beyond those that have a rating, so that its rating there is at least" in text


@settings(deadline=None)
@given(st.lists(st.integers(800, 3500), min_size=2, max_size=40), st.data())
def test_the_expected_place_of_the_rating_is_the_place(humans, data):
    place = data.draw(st.integers(2, len(humans)))
    rating, bound = rating_at(place, humans)
    assert bound == "" and expected(rating, humans) == pytest.approx(place, abs=1e-4)


CONTESTS = [
    Contest(name, dict.fromkeys("ABC", 500.0), tuple(Human(1000 + i, 5.0 * i) for i in range(count)))
    for name, count in (("1", 201), ("2", 200), ("3", 300), ("4", 300))
]


def test_a_contest_of_which_problems_are_not_in_the_benchmark_does_not_rate():
    """A model that solves all that it is asked would else be last among those who were asked more."""
    whole = [(name, index) for name in "123" for index in "ABC"]
    assert that_rate(CONTESTS, whole) == ([CONTESTS[0], CONTESTS[2]], Missing(1, 0, 0))
    kept, missing = that_rate(CONTESTS, [*whole[:-1], ("4", "A"), ("9", "A")])
    assert kept == CONTESTS[:1] and missing == Missing(1, 2, 1)
    best = rated(kept[0], {index: [True] for index in "ABC"})
    assert best.place == 1
    few, partial = "1 contest of at most 200 rated humans", "2 contests of which problems are not in the benchmark"
    text = describe([best], missing, False)
    assert text.endswith(f"Left out: {few}, {partial}, 1 contest of which there are no standings.")
    for problems, why in (
        ([("1", "A"), ("3", "B")], f"no contest rates: {partial}; give data with"),
        ([("2", "A")], f"no contest rates: {few}"),
        ([("9", "A")], "none of these 4 contests has a problem of the benchmark"),
        ([("1", "D")], "contest 1: the benchmark has its problem D"),
    ):
        with pytest.raises(ValueError, match=why):
            that_rate(CONTESTS, problems)


def contest(points, results=((1200, 0), (1400, 400), (1600, 900), (1800, 1500), (2000, 3000)), penalty=(0, 0, 0, 0, 0)):
    humans = [Human(rating, score, spent) for (rating, score), spent in zip(results, penalty)]
    return Contest("1", dict(zip("ABC", points)), tuple(humans))


def test_wrong_submissions_take_points_off():
    one = contest((500, 1000, 1500))
    assert points_of(one, {"A": [True]}) == (500, 0)
    assert points_of(one, {"A": [False, False, True, False], "B": [False] * 8}) == (400, 0)
    assert points_of(one, {"A": [False] * 8 + [True]}) == (0, 0)  # beyond eight submissions
    assert points_of(contest((100, 0, 0)), {"A": [False] * 3 + [True]}) == (0, 0)
    # Without points, solved problems count, and wrong submissions cost time.
    assert points_of(contest((0, 0, 0)), {"A": [False, True], "B": [True], "C": [False]}) == (2, 10)


def test_the_place_goes_by_points_then_by_penalty():
    assert place_of(contest((500, 1000, 1500)), 1000, 0) == 3
    assert place_of(contest((500, 1000, 1500)), 900, 0) == 3  # as good as one of them: before him
    solved = contest((0, 0, 0), [(1200, 0), (1400, 1), (1600, 2), (1800, 2), (2000, 3)], [0, 5, 20, 5, 60])
    assert place_of(solved, 2, 10) == 3
    assert place_of(solved, 2, 30) == 4


def test_the_mean_over_contests_says_what_is_but_a_bound():
    one = rated(contest((500, 1000, 1500)), {"A": [False, True], "B": [True]})  # 1450 points: place 3
    assert (one.place, one.of, one.bound) == (3, 5, "") and one.rating == pytest.approx(1712.08, abs=0.005)
    best = rated(contest((5000, 0, 0)), {"A": [True]})
    text = describe([one, best], Missing(3, 0, 1), False)
    assert f"rating, local tests: {(one.rating + best.rating) / 2:.0f} [" in text and "over 2 contests" in text
    assert "In 1 it took the first place, so that its rating there is at least" in text
    assert "[" not in describe([one], Missing(0, 0, 0), False)
    assert "off by one place" in describe([one], Missing(0, 0, 0), True)
    assert "it had 2, which makes the rating lower" in describe([one], Missing(0, 0, 0), False, 2)
    assert "makes the rating lower" not in text
