import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.eval.rating import Contest, Human, Missing, contests, describe, expected, place_of, points_of, rated, rating_at

HUMANS = [1200, 1400, 1600, 1800, 2000]


@pytest.mark.parametrize("place, rating", [(2, 1961.33), (3, 1712.08), (4, 1487.92), (5, 1238.67)])
def test_the_rating_of_a_place_among_five_humans(place, rating):
    found, bound = rating_at(place, HUMANS)
    assert found == pytest.approx(rating, abs=0.005) and bound == ""


def test_the_published_script_is_off_by_one_place_and_gives_the_best_places_a_bound():
    published = [rating_at(place, HUMANS, as_published=True) for place in range(1, 7)]
    assert [rating for rating, _ in published] == [2099, 2099, 1961, 1712, 1487, 1238]
    assert [bound for _, bound in published] == ["at least"] * 2 + [""] * 4
    best = rated(contest((5000, 0, 0)), {"A": [True]}, as_published=True)
    assert "In 1 it took a place beyond those that have a rating, so that its rating there is at least" in describe(
        [best], Missing(0, 0, 0), True
    )


ROWS = [
    {"id": name, "points": dict.fromkeys("ABC", 500.0), "humans": [(1000 + i, 5.0 * i, 0.0) for i in range(count)]}
    for name, count in (("1", 201), ("2", 200), ("3", 300), ("4", 300))
]


def test_a_contest_of_which_problems_are_not_in_the_benchmark_does_not_rate():
    """A model that solves all that it is asked would else be last among those who were asked more."""
    whole = [(name, index) for name in "123" for index in "ABC"]
    kept, missing = contests(ROWS, whole)
    assert [one.id for one in kept] == ["1", "3"] and missing == Missing(1, 0, 0)
    kept, missing = contests(ROWS, [*whole[:-1], ("4", "A"), ("9", "A")])
    assert [one.id for one in kept] == ["1"] and missing == Missing(1, 2, 1)
    best = rated(kept[0], {index: [True] for index in "ABC"})
    assert best.place == 1
    text = describe([best], missing, False)
    assert (
        "Left out: 1 contest of at most 200 rated humans, 2 contests of which problems are not in the benchmark, 1 " in text
    )
    assert text.endswith("contest of which there are no standings.")


@pytest.mark.parametrize(
    "problems, why",
    [
        (
            [("1", "A"), ("3", "B")],
            "no contest rates: 2 contests of which problems are not in the benchmark; give data with",
        ),
        ([("2", "A")], "no contest rates: 1 contest of at most 200 rated humans"),
        ([("9", "A")], "none of these 4 contests has a problem of the benchmark"),
        ([("1", "D")], "contest 1: the benchmark has its problem D"),
    ],
)
def test_where_no_contest_rates_there_is_no_rating(problems, why):
    with pytest.raises(ValueError, match=why):
        contests(ROWS, problems)


def test_first_and_last_place_give_bounds():
    first, last = rating_at(1, HUMANS), rating_at(6, HUMANS)
    assert first[1] == "at least" and first[0] > rating_at(2, HUMANS)[0]
    assert last[1] == "at most" and last[0] < rating_at(5, HUMANS)[0]


@settings(deadline=None)
@given(st.lists(st.integers(800, 3500), min_size=2, max_size=40), st.data())
def test_the_expected_place_of_the_rating_is_the_place(humans, data):
    place = data.draw(st.integers(2, len(humans)))
    rating, bound = rating_at(place, humans)
    assert bound == "" and expected(rating, humans) == pytest.approx(place, abs=1e-4)


@pytest.mark.parametrize("place, humans", [(0, HUMANS), (7, HUMANS), (1, [])])
def test_a_place_that_there_is_not_is_refused(place, humans):
    with pytest.raises(ValueError, match="expected 1 to"):
        rating_at(place, humans)


def contest(points, results=((1200, 0), (1400, 400), (1600, 900), (1800, 1500), (2000, 3000)), penalty=()):
    humans = [Human(rating, score, spent) for (rating, score), spent in zip(results, (*penalty, 0, 0, 0, 0, 0))]
    return Contest("1", dict(zip("ABC", points)), tuple(humans))


def test_wrong_submissions_take_points_off():
    one = contest((500, 1000, 1500))
    assert points_of(one, {"A": [True]}) == (500, 0)
    assert points_of(one, {"A": [False, False, True, False], "B": [False] * 8}) == (400, 0)
    assert points_of(one, {"A": [False] * 8 + [True]}) == (0, 0)  # beyond eight submissions
    assert points_of(contest((100, 0, 0)), {"A": [False] * 3 + [True]}) == (0, 0)


def test_without_points_solved_problems_count_and_wrong_submissions_cost_time():
    one = contest((0, 0, 0))
    assert points_of(one, {"A": [False, True], "B": [True], "C": [False]}) == (2, 10)


def test_the_place_goes_by_points_then_by_penalty():
    assert place_of(contest((500, 1000, 1500)), 1000, 0) == 3
    assert place_of(contest((500, 1000, 1500)), 900, 0) == 3  # as good as one of them: before him
    solved = contest((0, 0, 0), [(1200, 0), (1400, 1), (1600, 2), (1800, 2), (2000, 3)], [0, 5, 20, 5, 60])
    assert place_of(solved, 2, 10) == 3
    assert place_of(solved, 2, 30) == 4


def test_a_contest_is_rated_from_its_submissions():
    found = rated(contest((500, 1000, 1500)), {"A": [False, True], "B": [True]})  # 1450 points: place 3
    assert (found.place, found.of, found.bound) == (3, 5, "") and found.rating == pytest.approx(1712.08, abs=0.005)
    with pytest.raises(ValueError, match="contest 1: has no problem 'D'; it has A, B, C"):
        rated(contest((500, 1000, 1500)), {"D": [True]})


def test_the_mean_over_contests_says_what_is_but_a_bound():
    one = rated(contest((500, 1000, 1500)), {"A": [True], "B": [True]})
    last = rated(contest((500, 1000, 1500)), {})
    assert last.bound == ""  # as good as the human without points
    best = rated(contest((5000, 0, 0)), {"A": [True]})
    text = describe([one, best], Missing(3, 0, 1), False)
    assert f"rating, local tests: {(one.rating + best.rating) / 2:.0f} [" in text and "over 2 contests" in text
    assert "In 1 it took the first place, so that its rating there is at least" in text
    assert "Left out: 3 contests of at most 200 rated humans, 1 contest of which there are no standings." in text
    assert "[" not in describe([one], Missing(0, 0, 0), False)
    assert "off by one place" in describe([one], Missing(0, 0, 0), True)
