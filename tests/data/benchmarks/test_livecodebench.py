import base64
import json
import pickle
import tracemalloc
import zlib

import pytest

from gspo.data.benchmarks import livecodebench
from gspo.data.benchmarks.livecodebench import RELEASES, lcb_choose, lcb_row, private, span

STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]


def packed(cases):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def problem(public=STDIN, hidden=None, **changes):
    return {
        "question_title": "Sum", "question_content": "Add two numbers.", "platform": "atcoder", "question_id": "abc1_a",
        "contest_id": "abc1", "contest_date": "2024-10-05T00:00:00", "starter_code": "", "difficulty": "easy",
        "public_test_cases": json.dumps(public), "private_test_cases": hidden or packed(public), "metadata": "{}",
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


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"question_content": None}, "there is no question_content"),
        ({"public_test_cases": "[]", "private_test_cases": "[]"}, "there are no tests in public_test_cases and private"),
        ({"public_test_cases": "["}, "public_test_cases is not valid JSON"),
        ({"public_test_cases": "{}"}, "public_test_cases is dict; expected a list"),
        ({"public_test_cases": '[{"input": "1"}]'}, "public_test_cases, test 0: expected input, output and testtype"),
        ({"private_test_cases": "%%%"}, "neither JSON nor base64"),
        ({"private_test_cases": base64.b64encode(b"what").decode()}, "cannot be decompressed"),
        ({"private_test_cases": base64.b64encode(zlib.compress(b"what")).decode()}, "no pickle of text"),
        ({"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(3))).decode()}, "of text: it has BININT1"),
        ({"metadata": '{"func_name": "add"}'}, "the function is 'add', which does not go with the tests"),
        ({"metadata": '{"func_name": "a; b"}'}, "func_name = 'a; b': expected the name of a function"),
        ({"contest_date": "soon"}, "contest_date is 'soon'"),
    ],
)
def test_what_is_no_problem_is_refused(changes, why):
    with pytest.raises(ValueError, match=why):
        lcb_row(problem(**changes), 0)


class Hostile:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_loads_no_class_and_runs_nothing(protocol, capsys):
    cell = base64.b64encode(zlib.compress(pickle.dumps([Hostile()], protocol))).decode()
    with pytest.raises(ValueError, match=r"no pickle of text: it has (MARK|EMPTY_LIST), and nothing but text is read"):
        private(cell)
    assert capsys.readouterr().out == ""


def test_a_small_cell_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(livecodebench, "LARGEST", 1 << 20)
    bomb = base64.b64encode(zlib.compress(b"0" * (64 << 20))).decode()
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="more than 1 MiB when it is decompressed"):
        private(bomb)


def test_a_pickle_of_a_few_bytes_takes_no_memory():
    sparse = b"X\x02\x00\x00\x00[]r" + (1 << 26).to_bytes(4, "little") + b"."  # the last place of a memo of 1 GiB
    tracemalloc.start()
    try:
        assert private(base64.b64encode(zlib.compress(sparse)).decode()) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("protocol", range(6))
def test_text_of_every_protocol_is_read(protocol):
    for text in ("[]", '["' + "ä\\n" * 30_000 + '"]'):
        assert private(base64.b64encode(zlib.compress(pickle.dumps(text, protocol))).decode()) == json.loads(text)


@pytest.mark.parametrize("times, why", [(2, "it has 2 in place of one"), (1000, "more than a text needs")])
def test_a_pickle_of_more_than_a_text_is_refused(times, why):
    with pytest.raises(ValueError, match=why):
        private(base64.b64encode(zlib.compress(b"X\x02\x00\x00\x00[]" * times + b".")).decode())


def test_a_pickle_of_bytes_is_text_too():
    assert private(base64.b64encode(zlib.compress(pickle.dumps(json.dumps(STDIN).encode()))).decode()) == STDIN


def dated(count):
    return [{"id": str(i), "date": f"20{23 + i * 2 // count}-{10 + i % 3}-15"} for i in range(count)]


def test_releases_are_the_first_problems_of_a_later_one():
    whole = dated(RELEASES["v6"])
    assert len(lcb_choose(whole, "v1", "all")) == 400
    assert len(lcb_choose(whole, "v4", "all")) == 713
    assert len(lcb_choose(whole, None, "all")) == 880
    assert list(RELEASES.values()) == [400, 511, 612, 713, 880, 1055]
    for release, why in (("v7", "is none of v1"), ("v5", "it has 880 problems, and these are 400")):
        with pytest.raises(ValueError, match=why):
            lcb_choose(whole[:400], release, "all")


def test_windows_take_both_ends_and_are_that_of_the_sources_by_default():
    rows = [{"date": date} for date in ("2024-09-30", "2024-10-01", "2025-02-28", "2025-03-01")]
    assert lcb_choose(rows) == rows[1:3]
    assert lcb_choose(rows, None, "2024-09..2024-10") == rows[:2]
    assert lcb_choose(rows, None, "2024-10-02..2025-03-01") == rows[2:]
    assert span("202410-202502") == span("2024-10..2025-02") == ("2024-10-01", "2025-02-28")  # as papers write it
    with pytest.raises(ValueError, match=r"window 2023-01..2023-02: has no problem; choose from 2024-09-30 to .*, or all"):
        lcb_choose(rows, None, "2023-01..2023-02")


@pytest.mark.parametrize(
    "window", ["2024", "2024-10", "2024-13..2025-01", "2025-01..2024-01", "2024-10-40..2025-01", "a..b"]
)
def test_a_window_that_is_none_is_refused(window):
    with pytest.raises(ValueError, match="window"):
        span(window)
