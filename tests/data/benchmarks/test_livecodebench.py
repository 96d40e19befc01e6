import base64
import json
import pickle
import zlib

import pytest

from gspo.data.benchmarks.livecodebench import RELEASES, lcb_choose, lcb_row, private

STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]


def cell(content):
    return base64.b64encode(zlib.compress(content)).decode()


def packed(value, protocol=None):
    return cell(pickle.dumps(value, protocol))


def problem(public=STDIN, hidden=None, **changes):
    return {
        "question_title": "Sum", "question_content": "Add two numbers.", "platform": "atcoder", "question_id": "abc1_a",
        "contest_id": "abc1", "contest_date": "2024-10-05T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": json.dumps(public), "private_test_cases": hidden or packed(json.dumps(public)),
        "metadata": "{}",
    } | changes  # fmt: skip


def test_a_program_that_reads_standard_input():
    row = lcb_row(problem(), 0)
    assert row["tests"] == [{"input": "1 2\n", "output": "3\n"}] * 2
    assert (row["id"], row["function"], row["date"], row["difficulty"]) == ("abc1_a", None, "2024-10-05", "easy")
    assert "reads the input from standard input" in row["prompt"]


def test_a_function_with_starter_code():
    starter = "class Solution:\n    def add(self, a, b):\n        "
    row = lcb_row(problem(CALLS, json.dumps(CALLS), metadata='{"func_name": "add"}', starter_code=starter), 0)
    assert row["tests"] == [{"arguments": [[1, 2], 3], "value": [4, 5]}] * 2
    assert row["function"] == "add" and "class Solution" in row["prompt"]


def test_what_is_no_problem_is_refused(subtests):
    for changes, why in (
        ({"question_content": None}, "there is no question_content"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "there are no tests in public_test_cases and private"),
        ({"public_test_cases": "["}, "public_test_cases is not valid JSON"),
        ({"public_test_cases": "{}"}, "public_test_cases is dict; expected a list"),
        ({"public_test_cases": '[{"input": "1"}]'}, "public_test_cases, test 0: expected input, output and testtype"),
        ({"private_test_cases": "%%%"}, "neither JSON nor base64 of zlib"),
        ({"private_test_cases": base64.b64encode(b"what").decode()}, "neither JSON nor base64 of zlib"),
        ({"private_test_cases": cell(b"what")}, "no pickle"),
        ({"private_test_cases": packed(3)}, "a pickle of more than one text"),
        ({"metadata": '{"func_name": "add"}'}, "the function is 'add', which does not go with the tests"),
        ({"contest_date": "soon"}, "contest_date is 'soon'"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            lcb_row(problem(**changes), 0)


class Hostile:
    def __reduce__(self):
        return print, ("it ran",)


def test_hidden_tests_are_text_of_any_protocol_and_nothing_in_them_runs(capsys, subtests):
    text = b"X\x02\x00\x00\x00[]"
    for protocol in range(6):
        with subtests.test(protocol=protocol):
            for content in ("[]", '["' + "ä\\n" * 30_000 + '"]'):
                assert private(packed(content, protocol)) == json.loads(content)
            with pytest.raises(ValueError, match="more than one text, and nothing else is read"):
                private(packed([Hostile()], protocol))
    with pytest.raises(ValueError, match="more than one text"):
        private(cell(text * 2 + b"."))
    assert capsys.readouterr().out == ""


def test_releases_are_the_first_problems_of_a_later_one():
    assert list(RELEASES.values()) == [400, 511, 612, 713, 880, 1055]
    whole = [{"id": str(i), "date": "2024-10-15"} for i in range(RELEASES["v6"])]
    for release, count in (("v1", 400), ("v4", 713), (None, 1055)):
        assert lcb_choose(whole, release, "all") == whole[:count]
    for release, why in (("v7", "is none of v1"), ("v5", "it has 880 problems, and these are 400")):
        with pytest.raises(ValueError, match=why):
            lcb_choose(whole[:400], release, "all")


def test_windows_take_both_ends_and_are_that_of_the_sources_by_default(subtests):
    rows = [{"date": date} for date in ("2024-09-30", "2024-10-01", "2025-02-28", "2025-03-01")]
    assert lcb_choose(rows) == rows[1:3]
    assert lcb_choose(rows, None, "2024-09..2024-10") == rows[:2]
    assert lcb_choose(rows, None, "2024-10-02..2025-03-01") == rows[2:]
    with pytest.raises(ValueError, match=r"window 2023-01..2023-02: has no problem; choose from 2024-09-30 to .*, or all"):
        lcb_choose(rows, None, "2023-01..2023-02")
    for window in ("2024", "2024-10", "2024-13..2025-01", "2024-10-40..2025-01", "a..b"):
        with subtests.test(window), pytest.raises(ValueError, match=r"expected FROM\.\.TO"):
            lcb_choose(rows, None, window)
