import json

import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.benchmarks.table import BENCHMARKS, asked, digest, made, named, place, short
from gspo.data.sources import read
from gspo.data.tables import read_tables

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


def test_a_file_of_problems_and_answers_is_one_too(file):
    assert [row["answer"] for _, row in read(f"benchmark:{file}", TaskConfig(), "train")] == [str(i + 1) for i in range(30)]


@pytest.mark.parametrize(
    "source, config, why",
    [
        ("benchmark:aime42", {}, "is none of aime24.*Did you mean|is none of aime24"),
        ("benchmark:aime24", {"realease": "v5"}, "has no such option"),
        ("benchmark:aime24", {"data": "benchmark:aime25"}, "is a benchmark itself"),
        ("benchmark:aime24", {"data": "nowhere.jsonl"}, "there is no such file"),
    ],
)
def test_what_cannot_be_read_is_named(source, config, why):
    with pytest.raises(ValueError, match=why):
        read(source, TaskConfig(source=source, config=config), "train")


def test_ids_that_come_twice_are_refused():
    with pytest.raises(ValueError, match="here: rows 1 and 2 have the same id 'a': leave one out"):
        made("aime24", [{"problem": "?", "answer": 1, "id": i} for i in "bac".replace("c", "a")], {}, "here")


def test_a_row_of_another_schema_is_named():
    with pytest.raises(ValueError, match="here, row 1: there is no column problem"):
        made("aime24", [ROWS[0], {"text": "?"}], {}, "here")
    with pytest.raises(ValueError, match="here: there are no problems"):
        made("aime24", [], {}, "here")


def test_the_data_set_is_known_and_can_be_another():
    assert place("aime24", {}) == ("HuggingFaceH4/aime_2024", "train", {})
    assert place("aime24", {"data": "my/aime", "split": "test", "name": "I"}) == ("my/aime", "test", {"name": "I"})


def test_releases_of_livecodebench_are_configurations_of_its_data_set():
    hub = "lighteval/code_generation_lite", "test"
    assert place("livecodebench", {}) == (*hub, {"name": "release_v5"})
    assert place("livecodebench", {"release": "v6"}) == (*hub, {"name": "release_v6"})
    assert place("livecodebench", {"data": "x.jsonl"}) == ("x.jsonl", "test", {})
    assert asked("livecodebench", {"window": "all"}) == {"release": "v5", "window": "all"}
    assert asked("livecodebench", {"data": "x.jsonl"}) == {"data": "x.jsonl", "window": "2024-10..2025-02"}


def test_names():
    assert named("aime24") is BENCHMARKS["aime24"]
    assert short("aime24") == "aime24" and short("data/my.problems.jsonl") == "my.problems"


def test_the_fingerprint_knows_rows_and_their_order():
    one, other = [{"a": 1}, {"a": 2}], [{"a": 2}, {"a": 1}]
    assert digest(one) == digest([dict(row) for row in one]) != digest(other)
