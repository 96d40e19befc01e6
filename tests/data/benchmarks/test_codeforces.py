import json

import pytest

from gspo.data.benchmarks.codeforces import codeforces_row, contests_of

ROW = {
    "id": "1/A", "aliases": None, "contest_id": "1", "contest_name": "Round 1", "contest_type": "CF", "contest_start": 0,
    "contest_start_year": 2025, "index": "A", "time_limit": 2.0, "memory_limit": 256.0, "title": "Sum",
    "description": "Add.", "input_format": "Two numbers.", "output_format": "Their sum.", "interaction_format": None,
    "note": None, "examples": [{"input": "1 2", "output": "3"}], "editorial": None, "rating": 800, "tags": ["math"],
    "testset_size": 1, "official_tests": [{"input": "1 2\n", "output": "3\n"}], "official_tests_complete": True,
    "input_mode": "stdio", "generated_checker": None, "executable": True, "generated_tests": 0,
}  # fmt: skip


def test_a_problem():
    row = codeforces_row(ROW, 0)
    assert (row["id"], row["contest"], row["index"], row["seconds"], row["memory"]) == ("1/A", "1", "A", 2.0, 256.0)
    assert row["tests"] == [{"input": "1 2\n", "output": "3\n"}] and row["checker"] is None
    assert "Two numbers." in row["prompt"] and "1 2" in row["prompt"]


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"description": None}, "problem 1/A cannot be judged: no description"),
        ({"contest_id": None}, "there is no contest_id; the columns are"),
        ({"official_tests": []}, "problem 1/A cannot be judged: no official_tests"),
        ({"official_tests_complete": False}, "official_tests_complete is not true"),
        ({"official_tests": [{"input": 1}]}, "problem 1/A, test 0: expected input and output"),
        ({"official_tests": 5}, "problem 1/A: official_tests = 5: expected a list"),
        ({"input_mode": "file"}, "input_mode = 'file'"),
        ({"interaction_format": "Ask."}, "interactive"),
        ({"time_limit": -1}, "time_limit = -1: expected a number above 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        codeforces_row(ROW | changes, 0)


CONTEST = {
    "contest_id": 1,
    "problems": [{"index": "A", "points": 500.0}, {"index": "B", "points": 1000.0}],
    "standings": [
        {"party": {"members": [{"handle": "ann"}]}, "points": 1500.0, "penalty": 0},
        {"handle": "bob", "points": 500.0, "penalty": 3},
        {"handle": "unrated", "points": 0.0},
    ],
    "rating_changes": [{"handle": "ann", "oldRating": 1500}, {"handle": "bob", "oldRating": 1300}],
}


def written(tmp_path, *rows):
    path = tmp_path / "contests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_contests_keep_those_who_were_rated(tmp_path):
    (one,) = contests_of(written(tmp_path, CONTEST))
    assert one == {"id": "1", "points": {"A": 500.0, "B": 1000.0}, "humans": [(1500, 1500.0, 0.0), (1300, 500.0, 3.0)]}
    with pytest.raises(ValueError, match="contest 1 comes twice"):
        contests_of(written(tmp_path, CONTEST, CONTEST))


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"standings": []}, "contest 0: 1: standings is empty"),
        ({"rating_changes": None}, "rating_changes is empty"),
        ({"contest_id": None}, "there is no contest_id"),
        ({"standings": CONTEST["standings"][1:]}, "1 of 2 who were rated are not in the standings, such as ann"),
        ({"rating_changes": [{"handle": "ann", "oldRating": "high"}]}, "oldRating = 'high': expected a number"),
        ({"rating_changes": [{"handle": "ann", "oldRating": 10**400}]}, "oldRating = 1000.*: expected a number"),
        ({"problems": [{"index": "A", "points": [1]}]}, r"contest 0: points = \[1\]: expected a number"),
        ({"standings": [{"points": 3}]}, "there is no party"),
    ],
)
def test_standings_that_are_empty_or_do_not_fit_are_refused(tmp_path, changes, why):
    with pytest.raises(ValueError, match=why):
        contests_of(written(tmp_path, CONTEST | changes))
