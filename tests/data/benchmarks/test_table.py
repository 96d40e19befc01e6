import json

import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.benchmarks.table import asked, digest, made, place
from gspo.data.loaders import read
from gspo.data.splits import read_tables
from tests.data.benchmarks.test_codeforces import ROW as PROBLEM
from tests.logged import logs

ROWS = [{"ID": f"2024-I-{i}", "Problem": f"{i} + 1?", "Solution": "", "Answer": i + 1} for i in range(30)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def test_a_benchmark_is_a_source_of_prompts_like_any_other(file):
    task = TaskConfig(source="benchmark:aime24", config={"data": file})
    train, held_out = read_tables(task, EvalConfig(num_prompts=3))
    assert (len(train), len(held_out)) == (27, 3)
    assert dict(train.rows[0])["answer"] == "1" and train.label == f"benchmark aime24 ({file})"


def test_problems_that_are_given_twice_are_told():
    rows = [{"problem": f"{i} + 1?", "answer": i + 1} for i in (1, 2, 1, 2)]
    with logs("here: only 2 of 4 problems are different, so intervals are too narrow"):
        made("rows.jsonl", rows, {}, "here")
    with pytest.raises(ValueError, match="here, row 1: there is no answer: expected text or a number in answer"):
        made("rows.jsonl", [rows[0], {"problem": "?", "answer": ["2"]}], {}, "here")


def test_a_file_of_problems_and_answers_is_one_too(file):
    assert [row["answer"] for _, row in read(f"benchmark:{file}", TaskConfig(), "train")] == [str(i + 1) for i in range(30)]


def test_what_cannot_be_read_is_named(subtests):
    for name, config, why in (
        ("aime42", {}, "is none of aime24.*, did you mean aime"),
        ("aime24", {"realease": "v5"}, "has no such option"),
        ("aime24", {"data": "benchmark:aime25"}, "is a benchmark itself"),
        ("aime24", {"data": "nowhere.jsonl"}, "there is no such file"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            read(f"benchmark:{name}", TaskConfig(config=config), "train")


def test_rows_that_cannot_be_used_are_named():
    with pytest.raises(ValueError, match="here: rows 1 and 2 have the same id 'a': leave one out"):
        made("aime24", [{"problem": "?", "answer": 1, "id": i} for i in "baa"], {}, "here")
    with pytest.raises(
        ValueError, match=r"here, row 1: there is no column problem.*; leave the row out, or name other data"
    ):
        made("aime24", [ROWS[0], {"text": "?"}], {}, "here")


UNFIT = [{"official_tests_complete": False}] * 3 + [
    {"interaction_format": "Ask."}, {"input_mode": "file"}, {"official_tests": None}, {"description": None},
]  # fmt: skip


def test_problems_that_cannot_be_judged_are_left_out_and_counted():
    """The test split of open-r1/codeforces has such rows: one of them must not end the evaluation."""
    raw = [PROBLEM | {"id": f"1/{i}", "title": f"Problem {i}"} | changes for i, changes in enumerate([*UNFIT, {}, {}])]
    with logs(r"here: 7 problems left out \(3 official_tests_complete is not true, 1 interactive, .*\), of 9$"):
        rows, left_out = made("codeforces", raw, {}, "here")
    assert [row["id"] for row in rows] == ["1/7", "1/8"]
    assert left_out == {
        "official_tests_complete is not true": 3, "interactive": 1, "input_mode = 'file'": 1, "no official_tests": 1,
        "no description": 1,
    }  # fmt: skip
    with pytest.raises(ValueError, match="here: there is no problem that can be judged: 3 problems left out"):
        made("codeforces", raw[:3], {}, "here")
    with pytest.raises(ValueError, match="here, row 1: there is no contest_id"):  # another schema is no problem to leave out
        made("codeforces", [raw[8], {"id": "x"}], {}, "here")


def test_a_split_of_what_has_none_is_refused(subtests):
    for name, options, why in (
        ("codeforces", {"data": "x.jsonl", "name": "verifiable"}, "name = 'verifiable': x.jsonl has none"),
        ("x.jsonl", {"split": "train"}, "split = 'train': x.jsonl has none"),
        ("humaneval", {"split": "train"}, "split = 'train': its package has none"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            place(name, options)


def test_the_data_set_is_known_and_can_be_another():
    assert place("codeforces", {"name": "verifiable", "split": "train"}) == (
        "open-r1/codeforces", "train", {"name": "verifiable"},
    )  # fmt: skip
    assert place("aime24", {}) == ("HuggingFaceH4/aime_2024", "train", {})
    assert place("aime24", {"data": "my/aime", "split": "test", "name": "I"}) == ("my/aime", "test", {"name": "I"})


def test_releases_of_livecodebench_are_configurations_of_its_data_set():
    hub = "lighteval/code_generation_lite", "test"
    assert place("livecodebench", {}) == (*hub, {"name": "release_v5"})
    assert place("livecodebench", {"release": "v6"}) == (*hub, {"name": "release_v6"})
    assert place("livecodebench", {"name": "v4_v5"}) == (*hub, {"name": "v4_v5"})
    assert place("livecodebench", {"data": "x.jsonl"}) == ("x.jsonl", "test", {})
    assert asked("livecodebench", {"window": "all"}) == {"release": "v5", "window": "all"}
    assert asked("livecodebench", {"name": "v4_v5"}) == {"name": "v4_v5", "window": "2024-10..2025-02"}
    assert asked("livecodebench", {"data": "x.jsonl"}) == {"data": "x.jsonl", "window": "2024-10..2025-02"}


def test_the_fingerprint_knows_rows_and_their_order():
    one, other = [{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]
    assert digest(one) == digest([dict(row) for row in one]) != digest(other)
