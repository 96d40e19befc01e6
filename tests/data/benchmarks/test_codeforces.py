import json

import pytest

from gspo.data.benchmarks.codeforces import Contest, codeforces_row, contests_of

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


def test_another_schema_is_refused(subtests):
    """Problems that cannot be judged: test_table.py."""
    for changes, why in (
        ({"contest_id": None}, "there is no contest_id; the columns are"),
        ({"official_tests": [{"input": 1}]}, "official_tests: expected a list of tests with input and output"),
        ({"official_tests": 5}, "official_tests: expected a list"),
        ({"time_limit": -1}, "time_limit = -1: expected a number above 0"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
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
    (one,) = contests_of(written(tmp_path, CONTEST), "file")
    assert one == Contest("1", {"A": 500.0, "B": 1000.0}, ((1500, 1500.0, 0.0), (1300, 500.0, 3.0)))


def test_standings_that_are_empty_or_do_not_fit_are_refused(tmp_path, subtests):
    for changes, why in (
        ({"standings": []}, "file, contest 0: standings is empty"),
        ({"contest_id": None}, "contest_id is empty"),
        ({"standings": CONTEST["standings"][1:]}, "1 of 2 who were rated are not in the standings, such as ann"),
        ({"rating_changes": [{"handle": "ann", "oldRating": "high"}]}, "1: has not the fields .* to float: 'high'"),
        ({"problems": [{"index": "A", "points": [1]}]}, "1: has not the fields of Codeforces' interface: TypeError"),
        ({"standings": [{"points": 3}]}, "1: has not the fields of Codeforces' interface: KeyError: 'party'"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            contests_of(written(tmp_path, CONTEST | changes), "file")
    with pytest.raises(ValueError, match="file: contest 1 comes twice"):
        contests_of(written(tmp_path, CONTEST, CONTEST), "file")
